"""The tokenizer: lossless, stable over a conversation, equal to its Hugging Face files."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from core.engines.emulated import tokenizer
from core.engines.emulated.__main__ import write_tokenizer
from core.engines.emulated.api import sample

SAMPLES = [
    "",
    "hello world",
    "What  is  this?? é 日本語 123456 \n\n  x",
    "<|im_start|>user\nhi<|im_end|>\n",
    "tabs\tand\r\nlines \u00a0 no-break",
    "𝄞 clef, a\u2003b",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def library_twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("text", SAMPLES)
def test_text_survives(text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_any_text_survives(text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_the_library_agrees_with_the_written_files(library_twin, text):
    assert library_twin.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)


@pytest.mark.parametrize("text", SAMPLES)
def test_the_library_agrees_on_samples(library_twin, text):
    ids = tokenizer.encode(text)
    assert library_twin.encode(text, add_special_tokens=False).ids == ids
    assert library_twin.decode(ids, skip_special_tokens=False) == text


def test_generated_text_tokenizes_to_the_generated_ids():
    prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hi"}]))
    output = [sample(5, i) for i in range(200)]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": tokenizer.decode(output)},
        {"role": "user", "content": "Go on"},
    ]
    again = tokenizer.encode(tokenizer.render_chat(messages))
    assert again[: len(prompt) + len(output)] == prompt + output


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_the_template_file_writes_what_the_engine_renders(tools):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    environment = ImmutableSandboxedEnvironment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(tokenizer.CHAT_TEMPLATE)
    written = template.render(messages=messages, tools=tools, add_generation_prompt=True)
    assert written == tokenizer.render_chat(messages, tools=tools)


def test_output_words_have_one_width_and_are_distinct():
    first, last = tokenizer.OUTPUT_BASE, tokenizer.OUTPUT_BASE + tokenizer.OUTPUT_WORDS
    words = tokenizer.VOCABULARY[first:last]
    assert {len(word) for word in words} == {5}
    assert len(set(tokenizer.VOCABULARY)) == len(tokenizer.VOCABULARY)
    assert all(first <= sample(seed, 3) < last for seed in range(100))


def test_ids_beyond_the_vocabulary_are_shown_as_numbers():
    assert tokenizer.decode([99_999]) == "<99999>"
