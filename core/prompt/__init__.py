"""From a request's prompt to token ids: chat template, tokenizer, and what to do without them.

Sources, best first: ids in the request; a local directory with the model's tokenizer and chat
template; the engine's own /tokenize; the text itself, cut into words of four bytes, whose keys
match other text keys only (approximate mode).
"""

from core.prompt.chat_template import ChatTemplate
from core.prompt.prompts import (
    TEXT_SALT,
    Prompt,
    Prompts,
    Remote,
    chat_text,
    prompt_keys,
    text_words,
)
from core.prompt.tokenizer import LocalTokenizer

__all__ = [
    "TEXT_SALT",
    "ChatTemplate",
    "LocalTokenizer",
    "Prompt",
    "Prompts",
    "Remote",
    "chat_text",
    "prompt_keys",
    "text_words",
]
