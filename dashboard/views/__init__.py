"""One script a page; the navigation in `dashboard.app` names them."""
