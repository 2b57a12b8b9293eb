"""Prefill policies. Importing the package registers all of them."""

from core.policy import (  # noqa: F401 (imported to register)
    least_loaded,
    linear,
    min_ttft,
    round_robin,
)
from core.policy.base import Candidates, NamedPolicy, Scores, get_policy, policy_names
from core.policy.pick import pick

__all__ = ["Candidates", "NamedPolicy", "Scores", "get_policy", "pick", "policy_names"]
