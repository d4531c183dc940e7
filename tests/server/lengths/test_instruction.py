"""The split of a conversation into instruction and user input."""

import pytest

from server.lengths.instruction import InstructionSplit, SplitPrompt, split_by, split_messages, split_text

SYSTEM, FIRST_LINE, BLANK_LINE = InstructionSplit


def split(how: InstructionSplit, *turns: tuple[str, str]) -> SplitPrompt:
    return split_messages([{"role": role, "content": content} for role, content in turns], how)


@pytest.mark.parametrize("how", InstructionSplit)
def test_system_messages_are_the_instruction_whatever_the_split(how: InstructionSplit) -> None:
    begin = (("system", "Translate. "), ("user", "Hello\nthere"), ("assistant", "Hallo"))
    found = split(how, *begin, ("system", "Be brief."), ("user", "Bye"))
    assert found == SplitPrompt("Translate. \nBe brief.", "Hello\nthere\nHallo\nBye")


TEXT = "\nTranslate:\nto German\n\nHello\n\nBye\n"
SPLITS = [
    (SYSTEM, TEXT, "", TEXT.strip()),
    (FIRST_LINE, TEXT, "Translate:", "to German\n\nHello\n\nBye"),
    (BLANK_LINE, TEXT, "Translate:\nto German", "Hello\n\nBye"),
    (BLANK_LINE, "Translate\r\n \t\r\nHello", "Translate", "Hello"),  # with white space and Windows' line ends
    *((how, text, "", text.strip()) for how in InstructionSplit for text in ("Hello", " Hello\n", "")),
]


@pytest.mark.parametrize(("how", "text", "instruction", "user_input"), SPLITS)
def test_without_one_the_split_decides(how: InstructionSplit, text: str, instruction: str, user_input: str) -> None:
    assert split_text(text, how) == split(how, ("user", text)) == SplitPrompt(instruction, user_input)


def test_only_the_first_user_message_is_split_and_the_others_follow() -> None:
    found = split(FIRST_LINE, ("assistant", "Hi"), ("user", "Translate\nHello"), ("user", "More\nof it"))
    assert found == SplitPrompt("Translate", "Hi\nHello\nMore\nof it")
    assert split(FIRST_LINE, ("assistant", "Hi")) == SplitPrompt("", "Hi")
    assert split(FIRST_LINE) == SplitPrompt("", "")


LEFT_OUT = [
    ("Translate:", ["Translate: Hello"], "Hello"),
    (" Be kind. ", ["Be kind. Today is Monday.", "Hello"], "Today is Monday.\nHello"),
    ("a\nb", ["x a", "b y"], "x  y"),  # across messages
    ("Hello", ["Hello Hello"], "Hello"),  # once
    ("Somewhere else", ["Hello", "there"], "Hello\nthere"),
    ("  ", ["Hello"], "Hello"),
]


@pytest.mark.parametrize(("instruction", "contents", "user_input"), LEFT_OUT)
def test_an_instruction_is_left_out_of_the_user_input(instruction: str, contents: list[str], user_input: str) -> None:
    assert split_by(instruction, contents) == SplitPrompt(instruction.strip(), user_input)
