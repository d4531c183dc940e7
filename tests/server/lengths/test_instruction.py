"""The split of a conversation into instruction and user input."""

import pytest

from server.lengths.instruction import InstructionSplit, SplitPrompt, split_by, split_messages, split_text

SYSTEM, FIRST_LINE, BLANK_LINE = InstructionSplit


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("how", InstructionSplit)
def test_system_messages_are_the_instruction_whatever_the_split(how: InstructionSplit) -> None:
    messages = [
        message("system", "Translate. "),
        message("user", "Hello\nthere"),
        message("assistant", "Hallo"),
        message("system", "Be brief."),
        message("user", "Bye"),
    ]
    assert split_messages(messages, how) == SplitPrompt("Translate. \nBe brief.", "Hello\nthere\nHallo\nBye")


SPLITS = [
    (SYSTEM, "", "Translate:\nto German\n\nHello\n\nBye"),
    (FIRST_LINE, "Translate:", "to German\n\nHello\n\nBye"),
    (BLANK_LINE, "Translate:\nto German", "Hello\n\nBye"),
]


@pytest.mark.parametrize(("how", "instruction", "user_input"), SPLITS)
def test_without_one_the_split_decides(how: InstructionSplit, instruction: str, user_input: str) -> None:
    text = "\nTranslate:\nto German\n\nHello\n\nBye\n"
    assert split_text(text, how) == SplitPrompt(instruction, user_input)
    assert split_messages([message("user", text)], how) == SplitPrompt(instruction, user_input)


@pytest.mark.parametrize("how", InstructionSplit)
@pytest.mark.parametrize("text", ["Hello", " Hello\n", ""])
def test_a_text_in_one_piece_is_user_input(how: InstructionSplit, text: str) -> None:
    assert split_text(text, how) == SplitPrompt("", text.strip())


def test_blank_lines_may_hold_white_space_and_windows_line_ends() -> None:
    assert split_text("Translate\r\n \t\r\nHello", BLANK_LINE) == SplitPrompt("Translate", "Hello")


def test_only_the_first_user_message_is_split_and_the_others_follow() -> None:
    messages = [message("assistant", "Hi"), message("user", "Translate\nHello"), message("user", "More\nof it")]
    assert split_messages(messages, FIRST_LINE) == SplitPrompt("Translate", "Hi\nHello\nMore\nof it")


def test_a_conversation_without_users_is_user_input() -> None:
    assert split_messages([message("assistant", "Hi")], FIRST_LINE) == SplitPrompt("", "Hi")
    assert split_messages([], FIRST_LINE) == SplitPrompt("", "")


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
