"""Chats and answers: laid out by the template, found again by characters."""

from tests import tiny

CHAT = [
    {"role": "system", "content": "user"},  # a word of the template too
    {"role": "user", "content": "Is it the end? No."},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "user\nWhy"},
]
TRIMMING = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content | trim }}")


def test_a_chat_is_what_the_tokenizers_own_template_makes_of_it():
    clf = tiny.language_model()
    inputs = clf.encode([CHAT, CHAT[1:2]], answer=[" the end", "No"])
    for row, (chat, answer) in enumerate([(CHAT, " the end"), (CHAT[1:2], "No")]):
        prompt = clf.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        said = clf.tokenizer(answer)["input_ids"]
        own = inputs.valid_mask[row]
        assert inputs["input_ids"][row, own].tolist() == prompt + said
        assert inputs["answer_mask"][row, own].tolist() == [0] * len(prompt) + [1] * len(said)
    found = inputs.units("message").texts
    assert found[0] == tuple(message["content"] for message in CHAT)
    assert inputs.units("sentence").texts[1] == ("Is it the end?", "No.")
    content = [t for t, own in zip(inputs.tokens[0], inputs.content_mask[0], strict=False) if own]
    said = clf.tokenizer.convert_tokens_to_string(content)
    assert said == "".join(message["content"] for message in CHAT)
    alone = clf.encode(CHAT)
    assert "answer_mask" not in alone
    assert alone["input_ids"][0].tolist() == inputs["input_ids"][0, : alone.lengths[0]].tolist()


def test_messages_that_a_template_trims_are_found():
    clf = tiny.language_model(template=TRIMMING)
    inputs = clf.encode([{"role": "user", "content": "  Is it?\n"}], answer="No")
    assert inputs.units("message").texts == (("Is it?",),)
