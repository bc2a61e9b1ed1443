"""Output keys: as the original spells them where nothing needs an escape, no two alike, and read back by the recipes of docs/consuming.md."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.config.pipeline import AS_JSON, ESCAPED
from include.local.machine import java
from include.sample import truth as sample_truth
from spark_jobs.kafka.output_keys import output_key, output_keys
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.test_doc_examples import code_blocks

CONSUMING = (ROOT / "docs" / "consuming.md").read_text()
# What separates and escapes comes often, and beside anything else that a JSON string may hold.
FIELDS = st.text(st.sampled_from("-\\\"',[]ab\x00\n é😀") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
KEYS = st.integers(1, 4).flatmap(lambda count: st.lists(st.tuples(*[FIELDS] * count), min_size=1, max_size=20, unique=True))


def pipeline(spelling, count):
    return replace(CALLS, output_key=spelling, key=tuple(f"field{number}" for number in range(count)))


def spelled(spelling, keys):
    fields = [pa.array(column) for column in zip(*keys, strict=True)]
    return output_keys(pipeline(spelling, len(fields)), fields).to_pylist()


def recipe(language):
    (text,) = (block for block in code_blocks(CONSUMING, language) if "escaped" in block)
    return text


def fields_of() -> Any:
    names: dict[str, Any] = {}
    exec(recipe("python"), names)
    return names["fields_of"]


@pytest.mark.parametrize("spelling", [ESCAPED, AS_JSON])
@given(KEYS)
def test_no_two_keys_are_spelled_alike_and_each_can_be_read_back(spelling, keys):
    texts = spelled(spelling, keys)
    assert len(set(texts)) == len(keys)
    if spelling == AS_JSON:
        assert texts == [json.dumps(key, ensure_ascii=False, separators=(",", ":")) for key in keys]
    elif len(keys[0]) == 1:
        assert texts == [field for (field,) in keys]
    else:
        assert [tuple(fields_of()(text.encode())) for text in texts] == keys
    mine = pipeline(spelling, len(keys[0]))
    assert [output_key(mine, key).decode() for key in keys] == texts
    # The truth beside the sample traffic spells them by itself.
    assert [sample_truth._key(mine, list(key)).decode() for key in keys] == texts


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_characters="-\\", exclude_categories=["Cs"]), min_size=1)] * 2), min_size=1
    )
)
def test_fields_without_separator_and_escape_are_joined_as_the_original_does(keys):
    assert spelled(ESCAPED, keys) == ["-".join(key) for key in keys]


def test_the_pairs_that_used_to_be_one():
    assert spelled(ESCAPED, [("a-b", "c"), ("a", "b-c"), ("a\\", "b-c"), ("a\\-b", "c")]) == [
        r"a\-b-c", r"a-b\-c", r"a\\-b\-c", r"a\\\-b-c",
    ]  # fmt: skip
    assert spelled(AS_JSON, [("a-b", "c"), ('a"', "\x00é")]) == ['["a-b","c"]', '["a\\"","\\u0000é"]']


def test_java_reads_the_same_keys_back(tmp_path):
    """By the method in docs/consuming.md, and by the two patterns that it gives for SQL."""
    keys = [("ann", "bob"), ("a-b", "c"), ("a", "b-c"), ("a\\", "-b"), ("\\\\-", "😀\n"), ("-" * 20_000, "\\" * 20_000)]
    found, replaced = re.findall(r"REGEXP_EXTRACT_ALL\('([^']*)'.*?'([^']*)', '\$1'\)", CONSUMING)[0]
    texts, java_text = spelled(ESCAPED, keys), json.dumps
    (tmp_path / "Keys.java").write_text(f"""
import java.util.*;
import java.util.regex.*;
public class Keys {{
{recipe("java")}
    public static void main(String[] args) throws Exception {{
        var all = Pattern.compile({java_text(found)}, Pattern.DOTALL);
        for (String line : java.nio.file.Files.readAllLines(java.nio.file.Path.of(args[0]))) {{
            String key = new String(Base64.getDecoder().decode(line), "UTF-8");
            var bySql = new ArrayList<String>();
            for (var each = all.matcher(key); key.length() < 1000 && each.find();)
                bySql.add(Pattern.compile({java_text(replaced)}, Pattern.DOTALL).matcher(each.group()).replaceAll("$1"));
            if (key.length() < 1000 && !bySql.equals(fieldsOf(key))) throw new IllegalStateException(key);
            for (String field : fieldsOf(key)) System.out.print(Base64.getEncoder().encodeToString(field.getBytes("UTF-8")) + " ");
            System.out.println();
        }}
    }}
}}
""")
    from base64 import b64decode, b64encode

    (tmp_path / "keys").write_text("".join(b64encode(text.encode()).decode() + "\n" for text in texts))
    command = [java(), str(tmp_path / "Keys.java"), str(tmp_path / "keys")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [tuple(b64decode(word).decode() for word in line.split()) for line in done.stdout.splitlines()] == keys
