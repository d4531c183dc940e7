"""The options of Text for /tokenize and for a chat's template variables."""

from pathlib import Path

import pytest

from models.errors import TextError
from models.text import Text
from tests import tiny

TURNS = [{"role": "user", "content": "Hi"}]


def test_control_tokens_are_left_out_or_written_out(tiny_text: Text) -> None:
    ids = [tiny.START_ID, *tiny_text.encode("Hi"), tiny.END_ID]
    assert tiny_text.decode(ids) == "Hi"
    assert tiny_text.decode(ids, skip_special_tokens=False) == f"{tiny.START}Hi{tiny.END}"


def test_a_token_is_spelled_as_the_vocabulary_has_it(tiny_text: Text) -> None:
    assert "".join(tiny_text.token_string(token_id) for token_id in tiny_text.encode("a b")) == "aĠb"
    assert tiny_text.token_string(tiny.END_ID) == tiny.END
    assert tiny_text.token_string(10**6) == ""


def test_a_conversation_may_end_before_the_assistant_speaks(tiny_text: Text) -> None:
    ended = tiny_text.encode_chat(TURNS, add_generation_prompt=False)
    begun = tiny_text.encode_chat(TURNS)
    assert begun[: len(ended)] == ended
    assert tiny_text.decode(begun[len(ended) :], skip_special_tokens=False) == f"{tiny.START}assistant\n"


def test_the_assistants_last_turn_may_stay_open(tiny_text: Text) -> None:
    said = {"role": "assistant", "content": f"It is {tiny.END}"}
    ids = tiny_text.encode_chat([*TURNS, said], add_generation_prompt=False, continue_final_message=True)
    begun = tiny_text.encode_chat(TURNS)
    assert ids[: len(begun)] == begun and not {tiny.START_ID, tiny.END_ID} & set(ids[len(begun) :])
    assert tiny_text.decode(ids[len(begun) :]) == f"It is {tiny.END}"


def test_variables_reach_the_template(tiny_folder: Path) -> None:
    text = Text.load(tiny_folder, chat_template="{{ mood | default('calm') }}: {{ messages[0]['content'] }}")
    assert text.decode(text.encode_chat(TURNS)) == "calm: Hi"
    assert text.decode(text.encode_chat(TURNS, variables={"mood": "gay"})) == "gay: Hi"


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "conversation", "add_generation_prompt", "padding"])
def test_variables_may_not_take_the_place_of_what_has_its_own_meaning(tiny_text: Text, name: str) -> None:
    with pytest.raises(TextError, match=name):
        tiny_text.encode_chat(TURNS, variables={name: True})


def test_control_texts_in_variables_are_plain_text(tiny_folder: Path) -> None:
    text = Text.load(tiny_folder, chat_template="{{ mood }}{{ messages[0]['content'] }}")
    assert tiny.END_ID not in text.encode_chat(TURNS, variables={"mood": tiny.END})
