"""Prompt text as it may be kept, where keeping is switched on: cut, and redacted. Pure.

Replaced by their kind in brackets: credentials of this product; bearer and basic authorisation;
keys by the shape their makers give them (OpenAI and Anthropic, AWS, Google, GitHub, GitLab, Slack,
Stripe, Hugging Face); JSON web tokens; private keys in PEM; what follows a name such as password,
secret, token or api_key and a colon or equals sign; user names and passwords in addresses; long
runs of letters and digits that look random; e-mail addresses; card numbers with a good check
digit; IBANs with a good check number. Names, postal addresses, telephone numbers and whatever else
is only prose stay as they are: redaction is a net under a setting that is off, not a reason to
switch it on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sized
from typing import Any

SLACK_CHARS = 512
"""Looked at beyond the cut, so that a secret is not halved into something unrecognisable."""
_PARTS_MAX = 10_000
_KEYS = (
    r"cdr_[tsk]_[0-9a-f]+(?:_[0-9a-f]+)?",
    r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}",
    r"\bAIza[0-9A-Za-z_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{16,}",
    r"\bgithub_pat_[A-Za-z0-9_]{16,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bxox[a-z]-[A-Za-z0-9-]{8,}",
    r"\bhf_[A-Za-z0-9]{16,}",
)
_RULES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "-----BEGIN",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", re.S
        ),
        "[private key]",
    ),
    ("eyJ", re.compile(r"\beyJ[\w-]{8,}(?:\.[\w-]*){0,4}"), "[token]"),
    ("", re.compile("|".join(_KEYS)), "[key]"),
    ("", re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=-]{6,}", re.I), r"\1\2[secret]"),
    (
        "",
        re.compile(
            r"((?:pass(?:word|wd|phrase)?|secret|token|api[-_ ]?key|access[-_ ]?key|credential)s?"
            r"[\"']?\s{0,3}[:=]\s{0,3}[\"']?)[^\s\"',;]{3,}",
            re.I,
        ),
        r"\1[secret]",
    ),
    ("://", re.compile(r"(://)[^\s/@:]{1,128}:[^\s/@]{1,256}@"), r"\1[secret]@"),
    ("@", re.compile(r"(?<![\w.%+-])[\w.%+-]+@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "[e-mail]"),
)
"""What must be in the text for the rule to be tried, the rule, and what stands there instead."""
_RUN = re.compile(r"[A-Za-z0-9_\-+/=]{28,}")
_CARD = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")


def prompt_text(body: Mapping[str, Any], chars_max: int) -> str:
    """The text of a completion or chat request, one message a paragraph, not redacted yet.

    Cut a little after `chars_max`. Token ids, images and the like are named, not kept.
    """
    found, length = list[str](), 0
    for part in _parts(body):
        found.append(part[: chars_max + SLACK_CHARS - length])
        length += len(found[-1]) + 2
        if length >= chars_max + SLACK_CHARS or len(found) >= _PARTS_MAX:
            break
    return "\n\n".join(found)


def redacted(text: str, chars_max: int) -> str:
    """The text with what looks like a secret or an address of a person replaced, cut to size."""
    for mark, pattern, instead in _RULES:
        if mark in text:
            text = pattern.sub(instead, text)
    text = _CARD.sub(lambda m: "[card]" if _luhn(m[0]) else m[0], text)
    text = _IBAN.sub(lambda m: "[account]" if _iban(m[0]) else m[0], text)
    text = _RUN.sub(lambda m: "[secret]" if _random(m[0]) else m[0], text)
    return text if len(text) <= chars_max else text[:chars_max] + " […]"


def _parts(body: Mapping[str, Any]) -> Iterator[str]:
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                role = str(message.get("role", ""))[:64]
                yield f"{role}: {' '.join(_contents(message.get('content')))}"
    elif isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        yield from (text for text in prompt if isinstance(text, str))
    elif isinstance(prompt, Sized):
        yield f"[{len(prompt)} token ids]"


def _contents(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                text = part.get("text")
                yield text if isinstance(text, str) else f"[{str(part.get('type', ''))[:64]}]"


def _random(run: str) -> bool:
    """Whether a run of characters is none that people write: digits among letters of both cases,
    or hexadecimal."""
    digits = sum(c.isdigit() for c in run)
    if all(c in "0123456789abcdefABCDEF-" for c in run):
        return digits >= 6
    mixed = any(c.islower() for c in run) and any(c.isupper() for c in run)
    return digits >= 3 and (mixed or digits * 5 >= len(run))


def _luhn(text: str) -> bool:
    """The check digit of payment cards (ISO/IEC 7812-1)."""
    digits = [int(c) for c in reversed(text) if c.isdigit()]
    doubled = (d * 2 - 9 * (d > 4) for d in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _iban(text: str) -> bool:
    """The check number of account numbers (ISO 13616)."""
    plain = text.replace(" ", "")
    number = "".join(str(int(c, 36)) for c in plain[4:] + plain[:4])
    return len(plain) >= 15 and int(number) % 97 == 1
