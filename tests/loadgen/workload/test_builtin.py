"""The workload that needs no files: eight tasks on the standard library's own prose and functions."""

import ast
import itertools
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

import pytest

from loadgen.workload import tasks as damage
from loadgen.workload.sample import Sample, estimate
from loadgen.workload.tasks import TASKS, Material, prose, read_material, samples
from models.errors import UserError
from tests.loadgen.workload.args import prompts, write


@pytest.fixture(scope="module")
def material() -> Material:
    return read_material(random.Random(0), 40)


def drawn(material: Material, number: int, seed: int = 0) -> list[Sample]:
    return list(itertools.islice(samples(material, random.Random(seed)), number))


def test_every_task_gets_the_same_share_of_requests_that_nearly_all_differ(material: Material) -> None:
    found = drawn(material, 160)
    assert set(Counter(sample.label for sample in found).values()) == {20}
    assert len({sample.input for sample in found}) > 150


def test_the_instruction_is_the_system_message_and_the_text_the_users() -> None:
    found = prompts(num_prompts=8)
    assert len(found) == 8
    for prompt in found:
        system, user = prompt.messages
        task = next(task for task in TASKS if prompt.label == f"builtin/{task.name}")
        assert (system["role"], system["content"], user["role"]) == ("system", task.instruction, "user")
        assert user["content"].strip()


def test_the_same_seed_makes_the_same_requests_and_another_others() -> None:
    first, again, other = prompts(seed=1), prompts(seed=1), prompts(seed=2)
    assert first == again
    assert not {str(prompt.messages) for prompt in first} & {str(prompt.messages) for prompt in other}


@pytest.mark.parametrize("seed", range(3))
def test_lengths_of_answers_differ_a_hundredfold(material: Material, seed: int) -> None:
    lengths = sorted(sample.output_length(estimate) or 0 for sample in drawn(material, 400, seed))
    assert lengths[-1] >= 100 * lengths[0] > 0
    assert statistics.median(lengths) < statistics.mean(lengths) < 300


def test_texts_are_of_this_python(material: Material) -> None:
    root = Path(ast.__file__).parent
    everything = "\n".join(file.read_text(errors="replace") for file in root.glob("*.py"))
    flat = " ".join(everything.split())
    assert len(material.documents) > 25
    rng = random.Random(0)
    for sentence in rng.sample([one for document in material.documents for one in document], 20):
        assert sentence[:20] in flat, sentence
    for function in rng.sample(material.functions, 20):
        assert function.source.splitlines()[-1].strip() in everything


def test_nothing_of_the_library_is_imported(material: Material) -> None:
    before = set(sys.modules)
    read_material(random.Random(5), 8)
    assert set(sys.modules) == before


def test_functions_are_whole_and_without_their_docstring(material: Material) -> None:
    assert len(material.functions) > 500
    for function in material.functions:
        (node,) = ast.parse(function.source).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        assert ast.get_docstring(node) is None or ast.get_docstring(node) != function.docstring
    assert all(function.docstring for function in material.documented)


def test_answers_that_the_library_holds_give_the_length(material: Material) -> None:
    for sample in drawn(material, 400):
        if sample.label.endswith(("grammar", "politely", "bugs", "code")):
            assert (sample.stretch, sample.reference != sample.input) == (1.0, True)
        else:
            assert sample.reference == sample.input
            assert 0.5 <= sample.stretch < 2.5


def test_prose_is_sentences_and_no_examples() -> None:
    docstring = """Parse the header lines. Return a message object, or None.

    >>> parse("x")
    None

    - An item of a list
    Options::

        a = b

    The text may
    go on. See RFC 2822. it does.
    """
    said = list(prose(docstring))
    assert said == ["Parse the header lines.", "Return a message object, or None.", "The text may go on."]


# Files that are no help


def test_files_that_cannot_be_read_or_parsed_are_passed_over(tmp_path: Path) -> None:
    good = '"""A test module."""\n\ndef add(a, b):\n    """Return the sum of both."""\n    c = a + b\n    return c\n'
    write(tmp_path, "good.py", good)
    write(tmp_path, "binary.py", b"\xff\xfe\x00")
    write(tmp_path, "python2.py", "print 'x'\n")
    write(tmp_path, "nul.py", "a = 1\0\n")
    write(tmp_path, "deep.py", "x = " + "(" * 500 + ")" * 500)
    (tmp_path / "gone.py").symlink_to(tmp_path / "absent")
    (tmp_path / "folder.py").mkdir()
    material = read_material(random.Random(0), 8, tmp_path)
    assert material.documents == (("A test module.", "Return the sum of both."),)
    (function,) = material.functions
    assert function.source == "def add(a, b):\n    c = a + b\n    return c"
    assert function.docstring == "Return the sum of both."


def test_a_python_without_source_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no readable Python source.*another dataset"):
        read_material(random.Random(0), 8, tmp_path)


def test_a_bound_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="raise --max-input-len"):
        prompts("--max-input-len", 1, num_prompts=1)


def test_texts_beyond_the_bound_are_left_out() -> None:
    for prompt in prompts("--max-input-len", 100, num_prompts=20):
        assert sum(len(message["content"]) for message in prompt.messages) <= 100 * 4


# Damage


def test_damage_changes_every_text(material: Material) -> None:
    rng = random.Random(3)
    for sentence in [one for document in material.documents for one in document][:500]:
        assert damage.bad_grammar(sentence, rng) != sentence
        assert damage.rude(sentence, rng) != sentence
    for function in material.functions[:500]:
        wrong = damage.buggy(function.source, rng)
        assert wrong != function.source
        assert wrong.splitlines()[0] == function.source.splitlines()[0]


@pytest.mark.parametrize("word", ["A", "xx", "1 2", "-"])
def test_even_a_text_without_words_is_damaged(word: str) -> None:
    for seed in range(20):
        assert damage.bad_grammar(word, random.Random(seed)) != word


def test_a_function_without_a_known_bug_loses_a_line() -> None:
    source = "def f(self):\n    self.a()\n    self.b()"
    found = {damage.buggy(source, random.Random(seed)) for seed in range(20)}
    assert found == {"def f(self):\n    self.a()", "def f(self):\n    self.b()"}


def test_a_bug_is_one_change() -> None:
    wrong = damage.buggy("def f(a):\n    b = a == 1\n    yield b", random.Random(0))
    assert wrong == "def f(a):\n    b = a != 1\n    yield b"
