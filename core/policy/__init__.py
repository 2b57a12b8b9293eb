"""Prefill policies. Importing the package registers all of them."""

from core.policy import (  # noqa: F401 (imported to register)
    dynamo,
    least_loaded,
    least_prefill_work,
    linear,
    llmd,
    min_ttft,
    multiplicative,
    priced_ttft,
    pstack,
    random_choice,
    round_robin,
    session_affinity,
    size_aware,
    smg,
    vllm,
    weighted,
)
from core.policy.base import Candidates, NamedPolicy, Scores, get_policy, policy_names
from core.policy.pick import pick

__all__ = ["Candidates", "NamedPolicy", "Scores", "get_policy", "pick", "policy_names"]
