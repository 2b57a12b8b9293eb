"""The SLO page: margins, budgets, calibration."""
