"""Labels and conditions: one canonical form for every spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gears.conditions import CONTROL_LABEL, SEPARATOR, Condition

GENE = st.text("ABCDctrlXYZ0123-/_.", min_size=1, max_size=8).filter(lambda gene: gene != CONTROL_LABEL)


@pytest.mark.parametrize("label", ["KLF1+ctrl", "ctrl+KLF1", " KLF1 + ctrl ", "KLF1", "KLF1+KLF1", "ctrl+KLF1+ctrl"])
def test_spellings_of_a_single(label):
    condition = Condition.parse(label)
    assert condition == Condition(("KLF1",))
    assert (condition.name, condition.key, len(condition)) == ("KLF1+ctrl", "KLF1", 1)


def test_spellings_of_the_control_which_is_a_token_and_never_a_substring():
    for label in ("ctrl", " ctrl", "ctrl+ctrl"):
        condition = Condition.parse(label)
        assert condition.is_control
        assert (condition.name, condition.key, str(condition)) == ("ctrl", "ctrl", "ctrl")
    assert Condition.parse("ctrlA+Bctrl").genes == ("Bctrl", "ctrlA")
    assert Condition.parse("CTRL+A").genes == ("A", "CTRL")
    assert Condition.parse("A_NT", ctrl_label="NT", sep="_").genes == ("A",)
    assert Condition.parse("NT", ctrl_label="NT").is_control
    assert Condition.parse("ctrl", ctrl_label="NT").genes == ("ctrl",)


@given(st.lists(GENE, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_and_repeats_do_not_matter(genes, random):
    shuffled = [*genes, *genes[:1], CONTROL_LABEL]
    random.shuffle(shuffled)
    condition = Condition.parse(SEPARATOR.join(shuffled))
    assert condition == Condition.of(genes)
    assert condition.genes == tuple(sorted(set(genes)))
    assert Condition.parse(condition.name) == condition
    assert hash(condition) == hash(Condition.of(reversed(genes)))


def test_any_value_that_means_a_condition():
    expected = Condition(("A", "B"))
    for value in (expected, "B+A", ["B", "A"], ("A", "B", "ctrl"), {"A", "B"}):
        assert Condition.of(value) == expected
    assert Condition.of(["ctrl"]).is_control


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *((lambda label=label: Condition.parse(label), "empty gene name") for label in ("", " ", "A+", "+A", "A++B")),
        (lambda: Condition.parse(3.5), "is a string such as"),
        (lambda: Condition((" A",)), "without outer blanks"),
        (lambda: Condition(("",)), "non-empty strings"),
    ],
)
def test_what_is_no_condition_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_conditions_sort_and_print():
    assert sorted([Condition(("B",)), Condition(), Condition(("A", "C"))])[0].is_control
    assert repr(Condition.parse("B+A")) == "Condition('A+B')"
