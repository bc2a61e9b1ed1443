r"""The key of a message on the output topic: a pipeline's key fields in one text, from which they can be read back.

One field is its own key. Of more, two spellings: `escaped` joins them by `-`, a backslash before every `-` and every backslash that a
field has itself; `json` is a compact JSON array. Both are injective: no two keys of a pipeline have one text.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import ESCAPED, Pipeline

# What JSON writes otherwise than it is.
_ESCAPED_IN_JSON = r'["\\\x00-\x1f]'


def output_keys(pipeline: Pipeline, fields: list[pa.Array]) -> pa.Array:
    r"""The keys (texts) of columns of key fields.

    >>> from include.config.pipeline import PIPELINES
    >>> from include.config.pipeline_file import load_pipeline
    >>> fields = [pa.array(["ann", "a-b", "a"]), pa.array(["bob", "c", "b-c"])]
    >>> output_keys(load_pipeline(PIPELINES / "calls.yaml"), fields).to_pylist() == ["ann-bob", r"a\-b-c", r"a-b\-c"]
    True
    """
    if pipeline.output_key != ESCAPED:
        return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*map(json_strings, fields), ","), "]", "")
    if len(fields) == 1:
        return fields[0]
    return pc.binary_join_element_wise(*map(_escaped, fields), "-")


def output_key(pipeline: Pipeline, key: tuple[str, ...]) -> bytes:
    """The same of one key, as the topic has it."""
    (text,) = output_keys(pipeline, [pa.array([field]) for field in key]).to_pylist()
    return str(text).encode()


def _escaped(texts: pa.Array) -> pa.Array:
    # The backslash first, or those before a separator would be doubled as well.
    for special in ("\\", "-"):
        if _may_have(texts, special.encode()):
            texts = pc.replace_substring(texts, special, f"\\{special}")
    return texts


def _may_have(texts: pa.Array, special: bytes) -> bool:
    # Most fields have neither, and their bytes are looked through in no time; what is not of these rows does no harm.
    data = texts.buffers()[2]
    return data is not None and special in data.to_pybytes()


def json_strings(texts: pa.Array) -> pa.Array:
    r"""Texts as JSON strings, spelled as json.dumps(ensure_ascii=False) spells them.

    >>> json_strings(pa.array(["x", 'a"b', "é\n"])).to_pylist() == ['"x"', r'"a\"b"', r'"é\n"']
    True
    """
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    escaped = pc.match_substring_regex(texts, _ESCAPED_IN_JSON)
    if not pc.any(escaped).as_py():
        return quoted
    spelled = [json.dumps(text, ensure_ascii=False) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(quoted, escaped, pa.array(spelled, pa.string()))
