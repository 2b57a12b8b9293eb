"""Token ids by every road: ids, local tokenizer and template, the engine, the text itself."""

import json
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from core.engines.emulated import tokenizer as emulated
from core.errors import BadRequest, EngineUnreachable
from core.hashing import chain, root_key
from core.prompt import (
    ChatTemplate,
    LocalTokenizer,
    Prompts,
    chat_text,
    prompt_keys,
    text_words,
)
from core.prompt.prompts import TEXT_SALT
from core.prompt.tokenizer import SegmentCache

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Count: one two three."},
]


def write_tokenizer(folder, *, template=CHATML, prepend=None, **config):
    model = Tokenizer(models.BPE(unk_token=None))
    if prepend is None:
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    model.train_from_iterator(["one two three", "You are terse. Count:"] * 5, trainer)
    model.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")]
    )
    model.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def whole_chat(local, messages):
    text = local.template.render(messages)
    return local._tokenizer.encode(text, add_special_tokens=False).ids


# --- templates ---------------------------------------------------------------------------------


def test_template_gets_tokens_tools_and_date():
    source = "{{ bos_token }}{{ tools | tojson }}{{ strftime_now('%Y') }}{{ messages[0].content }}"
    template = ChatTemplate(source, tokens={"bos_token": "<s>"})
    text = template.render(TALK[:1], tools=[{"a": "é<"}], now=datetime(2031, 1, 1))
    assert text == '<s>[{"a": "é<"}]2031You are terse.'


def test_parts_are_joined_unless_the_template_walks_over_them():
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    parts = [{"role": "user", "content": content}]
    assert ChatTemplate("{{ messages[0].content }}").render(parts) == "a\nb"
    walking = ChatTemplate("{% for p in messages[0]['content'] %}[{{ p.text }}]{% endfor %}")
    assert walking.render(parts) == "[a][b]"
    assert walking.render([{"role": "user", "content": "a"}]) == "[a]"


def test_tool_calls_reach_the_template_as_objects():
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.x + 1 }}")
    assert template.render(messages) == "2"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].nothing.more }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 // (messages | length - messages | length) }}",
    ],
)
def test_templates_that_fail_are_refusals(source):
    with pytest.raises(BadRequest) as e:
        ChatTemplate(source).render(TALK)
    assert e.value.field == "messages"


def test_nesting_without_end_is_left_to_the_engine():
    deep: list = []
    for _ in range(1_000):
        deep = [deep]
    with pytest.raises(BadRequest):
        ChatTemplate("{{ tools | tojson }}").render(TALK, tools=deep)
    call = {"type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    shown = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | length }}")
    assert shown.render(messages) == "100000"


def test_extra_variables_cannot_replace_the_messages():
    template = ChatTemplate("{{ messages | length }}{{ enable_thinking }}")
    assert template.render(TALK, extra={"messages": [], "enable_thinking": 5}) == "25"


# --- local tokenizer ---------------------------------------------------------------------------


def test_pieces_equal_the_whole(folder):
    local = LocalTokenizer(folder)
    assert local.segmented
    assert local.encode_chat(TALK).tolist() == whole_chat(local, TALK)


texts = st.text(max_size=30) | st.sampled_from(["<|im_end|>", "a<|im_start|>b", " x ", "\n"])


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), texts), min_size=1, max_size=6))
def test_pieces_equal_the_whole_for_any_conversation(folder_once, talk):
    messages = [{"role": role, "content": text} for role, text in talk]
    assert folder_once.encode_chat(messages).tolist() == whole_chat(folder_once, messages)


@pytest.fixture(scope="module")
def folder_once(folder):
    return LocalTokenizer(folder)


def test_earlier_turns_come_from_the_cache(folder):
    local = LocalTokenizer(folder)
    local.encode_chat(TALK)
    misses = local.cache.misses
    longer = [*TALK, {"role": "assistant", "content": "1 2 3"}, {"role": "user", "content": "4"}]
    assert local.encode_chat(longer).tolist() == whole_chat(local, longer)
    assert local.cache.misses - misses == 2


def test_position_dependent_tokenizers_take_the_whole_text(tmp_path):
    local = LocalTokenizer(write_tokenizer(tmp_path, prepend="first"))
    assert local.encode_chat(TALK).tolist() == whole_chat(local, TALK)


def test_what_a_directory_cannot_give(tmp_path, folder):
    with pytest.raises(BadRequest):
        LocalTokenizer(tmp_path)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert LocalTokenizer(folder).encode_chat(image) is None
    bare = LocalTokenizer(write_tokenizer(tmp_path, template=None))
    assert bare.encode_chat(TALK) is None
    assert len(bare.encode_text("one two"))


def test_named_templates_and_files_beside(tmp_path):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert LocalTokenizer(write_tokenizer(tmp_path, template=named)).template.render([]) == "d"
    (tmp_path / "chat_template.jinja").write_text("file{{ eos_token }}")
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}})
    )
    assert LocalTokenizer(tmp_path).template.render([]) == "file</s>"


def test_emulated_engines_tokenizer_loads_from_its_files(tmp_path):
    for name, content in emulated.huggingface_files().items():
        (tmp_path / name).write_text(content)
    local = LocalTokenizer(tmp_path)
    assert local.encode_text("The quick brown fox").tolist() == list(
        emulated.encode("The quick brown fox")
    )


def test_cache_is_bounded_by_tokens():
    cache = SegmentCache(tokens_max=1000)
    for n in range(200):
        cache.put(str(n), np.zeros(50, np.uint32))
        assert cache.tokens <= 1000
    assert cache.get("199") is not None
    assert cache.get("0") is None
    cache.put("big", np.zeros(500, np.uint32))
    assert cache.get("big") is None


# --- choosing a road ---------------------------------------------------------------------------


def prompts(local=None, remote=None, **more):
    return Prompts({"m": local} if local else {}, remote=remote, **more)


async def of(p, **body):
    return await p.of_body(body, "m")


async def test_ids_are_taken_as_they_are():
    p = prompts()
    found = await of(p, prompt=[5, 6, 7])
    assert (found.tokens.tolist(), found.length, found.exact, found.source) == (
        [5, 6, 7],
        3,
        True,
        "ids",
    )
    assert (await of(p, prompt=[[8, 9], [1]])).tokens.tolist() == [8, 9]
    assert (await of(p, prompt=[1, 2, 3], truncate_prompt_tokens=2)).tokens.tolist() == [2, 3]


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], [True], [1, "a"], [None]])
async def test_ids_that_are_none_are_refused(ids):
    with pytest.raises(BadRequest) as e:
        await of(prompts(), prompt=ids)
    assert e.value.field == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": {}},
        {"messages": "x"},
        {"messages": [1]},
    ],
)
async def test_the_engine_judges_everything_else(body):
    found = await prompts().of_body(body, "m")
    assert (found.exact, found.source) == (False, "text")


async def test_local_before_engine(folder):
    async def never(served, fields):
        raise AssertionError("asked although there is a local tokenizer")

    p = prompts(LocalTokenizer(folder), never)
    assert (await of(p, prompt="one two")).source == "local"
    assert (await of(p, messages=TALK)).source == "local"
    assert p.counts["local"] == 2


async def test_long_prompts_take_a_thread_and_give_the_same(folder):
    local = LocalTokenizer(folder)
    text = "one two three " * 2000
    quick, slow = prompts(local, thread_chars=10**9), prompts(local, thread_chars=10)
    assert (await of(quick, prompt=text)).tokens.tolist() == (
        await of(slow, prompt=text)
    ).tokens.tolist()
    chat = [{"role": "user", "content": text}]
    assert (await of(slow, messages=chat)).tokens.tolist() == whole_chat(local, chat)
    slow.close()


async def test_engine_is_asked_with_everything_that_shapes_the_prompt_and_remembered():
    asked = []

    async def remote(served, fields):
        asked.append((served, fields))
        return [1, 2, 3]

    p = prompts(remote=remote)
    body = {"messages": TALK, "tools": [{"x": 1}], "chat_template_kwargs": {"y": 2}, "n": 4}
    for _ in range(2):
        found = await p.of_body(body, "m", served="lora")
    assert found.tokens.tolist() == [1, 2, 3] and found.source == "engine"
    assert asked == [
        ("lora", {"messages": TALK, "add_generation_prompt": True, "tools": [{"x": 1}],
                  "chat_template_kwargs": {"y": 2}})
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [None, EngineUnreachable("gone")])
async def test_text_when_the_engine_does_not_tell(answer):
    async def remote(served, fields):
        if answer is not None:
            raise answer
        return

    p = prompts(remote=remote)
    found = await of(p, prompt="x" * 400)
    assert (found.source, found.length, found.exact) == ("text", 100, False)
    assert p.counts["engine_failed"] == 1


async def test_refusing_templates_leave_it_to_the_engine(tmp_path):
    async def remote(served, fields):
        return [9]

    local = LocalTokenizer(write_tokenizer(tmp_path, template="{{ raise_exception('no') }}"))
    assert (await of(prompts(local, remote), messages=TALK)).source == "engine"


@pytest.mark.parametrize("field", ["continue_final_message", "chat_template", "documents"])
async def test_what_only_the_engine_understands_goes_to_it(folder, field):
    async def remote(served, fields):
        return [9]

    p = prompts(LocalTokenizer(folder), remote)
    assert (await of(p, messages=TALK, **{field: "x"})).source == "engine"


async def test_distrusted_tokenizers_are_not_used(folder):
    p = prompts(LocalTokenizer(folder))
    assert p.local_ids("m", "one two") is not None
    assert p.local_ids("m", TALK) == whole_chat(LocalTokenizer(folder), TALK)
    p.distrust("m", "token 3 differs")
    assert (await of(p, prompt="one two")).source == "text"


async def test_text_lengths_are_learnt():
    p = prompts()
    first = await of(p, prompt="x" * 1000)
    assert first.length == 250
    for _ in range(60):
        p.observe("m", first, 500)
    assert (await of(p, prompt="x" * 1000)).length == pytest.approx(500, abs=5)


# --- keys --------------------------------------------------------------------------------------


async def test_keys_are_chains_per_block_size():
    found = await of(prompts(), prompt=list(range(100)))
    keys = await prompt_keys(found, "m", block_sizes=(16, 32), adapter="l", salt="s")
    for size in (16, 32):
        root = root_key("m", adapter="l", salt="s", block_size=size)
        assert keys[size] == chain(found.tokens, size, root)


async def test_sliced_hashing_equals_hashing_at_once():
    ids = np.arange(200_000, dtype=np.uint32) % 50_000
    found = await of(prompts(), prompt=ids.tolist())
    keys = await prompt_keys(found, "m", block_sizes=(48,))
    assert keys[48] == chain(ids, 48, root_key("m", block_size=48))


async def test_text_keys_never_meet_token_keys():
    p = prompts()
    by_text = await of(p, prompt="abcdabcdabcdabcd")
    by_ids = await of(p, prompt=by_text.tokens.tolist())
    a = await prompt_keys(by_text, "m", block_sizes=(4,))
    b = await prompt_keys(by_ids, "m", block_sizes=(4,))
    assert a[4] and b[4] and not set(a[4]) & set(b[4])
    assert a[4] == chain(by_text.tokens, 4, root_key("m", salt=TEXT_SALT, block_size=4))


@given(st.lists(st.text(max_size=9), min_size=1, max_size=5), st.text(max_size=9))
def test_longer_conversations_begin_with_the_shorter_ones(contents, more):
    talk = [{"role": "user", "content": c} for c in contents]
    short = chat_text(talk)
    long = chat_text([*talk, {"role": "user", "content": more}])
    assert long.startswith(short)
    words = text_words(short).tolist()
    assert text_words(long).tolist()[: len(words)] == words
