"""What a predicted and an observed time each hold, said wherever they stand beside each other."""

from __future__ import annotations

TTFT = (
    "TTFT: predicted is what the chosen nodes take: queue, transfer, prefill. Observed runs from "
    "the request's arrival to its first token passed on, so it also holds what the service does "
    "(reading the prompt, deciding), the calls to the engines, and the second call where another "
    "node decodes. Where prefill takes few milliseconds, most of what is observed is that."
)
TBT = (
    "TBT: predicted is the mean step of the batch with this request in it; observed is the mean "
    "of the longest tenth of its gaps, which is never less than its mean gap."
)
