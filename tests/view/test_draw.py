import dataclasses
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.output import DraftTree, Output, Stats, TracedRound
from jaxspec.cli import main as cli
from jaxspec.cli.shared.errors import USER_ERROR
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.view import notebook
from jaxspec.view import text as text_view
from jaxspec.view.pictures import find_makers, make_picture
from jaxspec.view.unpruned import grow_unpruned_tree

GOLDEN = SHIPPED
WORDS = {1: "the", 2: " cat", 3: " dog", 4: " sat", 5: " ran", 6: " on", 7: " a", 8: " mat", 9: "."}


def word(token):
    return WORDS[token]


def words(ids):
    return "".join(map(word, ids))


def tree(tokens, parents, probabilities):
    depth = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    return DraftTree(
        *map(np.array, (tokens, parents, depth)), np.log(np.array(probabilities, np.float32))
    )


# The prefill draws "the"; the first round commits " cat", " sat" and the bonus " on", the second is
# cut by the limit behind the drafted " a", for which its path has the root alone.
FIRST = TracedRound(tree([1, 2, 3, 4, 5], [-1, 0, 0, 1, 1], [1, 0.8, 0.1, 0.6, 0.1]), (0, 1, 3), 6)
LAST = TracedRound(tree([6, 7, 8], [-1, 0, 1], [1, 0.5, 0.4]), (0,), 9)


def output(rounds=(FIRST, LAST), tokens=(1, 2, 4, 6, 7)):
    stats = Stats(2, 5, 6, (0, 1, 0, 1), "length", 0.0, 1.0)
    return Output(None, list(tokens), stats, None if rounds is None else list(rounds))


def test_makers_tell_drafted_tokens_from_the_targets_own():
    made = find_makers(output())
    assert [one.kind for one in made] == ["prefill", "accepted", "accepted", "bonus", "accepted"]
    assert [one.round for one in made] == [0, 1, 1, 1, 2]
    stopped = find_makers(output(tokens=[1, 2]))
    assert [one.kind for one in stopped] == ["prefill", "accepted"], (
        "a stop string cut the first round"
    )
    ended = find_makers(output((FIRST, TracedRound(LAST.tree, (0,), 9)), (1, 2, 4, 6, 9)))
    assert ended[-1].kind == "bonus", "no child of the path's end holds it"


def test_tree_as_text():
    text = text_view.format_tree(make_picture(output(), 1), word)
    assert text.splitlines() == [
        "round 1: 5 rows verified, 2 drafted accepted, then the bonus",
        "                given parent  path",
        "'the'",
        "├─ ' cat'               0.80  0.80  accepted",
        "│  ├─ ' sat'            0.75  0.60  accepted",
        "│  │  └─ ' on'                      bonus",
        "│  └─ ' ran'            0.12  0.10",
        "└─ ' dog'               0.10  0.10",
    ]
    coloured = text_view.format_tree(make_picture(output(), 1), word, colour=True).splitlines()
    assert (
        coloured[3].startswith("\x1b[32m")
        and coloured[5].startswith("\x1b[33m")
        and coloured[6] == text.splitlines()[6]
    )


# The target is surer than the drafter of " cat", and nearly rules out " sat" after it.
SCORED = dataclasses.replace(
    FIRST,
    tree=dataclasses.replace(
        FIRST.tree, target_logprob=np.log(np.array([1, 0.9, 0.2, 1e-6, 0.3], np.float32))
    ),
)


def test_the_targets_probabilities_are_drawn_if_asked():
    """The gaps are log 0.8 - log 0.9 and log 0.6 - log 0.9e-6."""
    out = output((SCORED, LAST))
    shown = make_picture(out, 1, target=True)
    assert text_view.format_tree(shown, word).splitlines() == [
        "round 1: 5 rows verified, 2 drafted accepted, then the bonus",
        "rank-1 gap by depth, nats: -0.12 +13.41",
        "                given parent  path  target",
        "'the'",
        "├─ ' cat'               0.80  0.80    0.90  accepted",
        "│  ├─ ' sat'            0.75  0.60   1e-06  accepted",
        "│  │  └─ ' on'                              bonus",
        "│  └─ ' ran'            0.12  0.10    0.30",
        "└─ ' dog'               0.10  0.10    0.20",
    ]
    assert "gap" not in text_view.format_tree(make_picture(out, 1), word)
    drawn = "".join(
        ElementTree.fromstring(notebook.show_tree(out, 1, target=True)._repr_svg_()).itertext()
    )
    assert "target 1e-06" in drawn and "rank-1 gap by depth, nats: -0.12 +13.41" in drawn
    with pytest.raises(ValueError, match="no log-probabilities of the target"):
        make_picture(out, 2, target=True)


def test_the_target_is_unknown_where_a_policy_cut():
    whole = tree([1, 3, 2, 4, 8, 9], [-1, 0, 0, 2, 1, 3], [1, 0.1, 0.8, 0.6, 0.05, 0.3])
    shown = make_picture(output((SCORED, LAST)), 1, whole, target=True)
    np.testing.assert_allclose(shown.target, [1, 0.2, 0.9, 1e-6, np.nan, np.nan, 0.3], rtol=1e-5)
    assert " -  not verified" in text_view.format_tree(shown, word)


def test_a_round_cut_by_the_limit_ends_in_a_drafted_token():
    shown = make_picture(output(), 2)
    assert shown.bonus is None and shown.accepted.tolist() == [True, True, False]
    assert "bonus" not in text_view.format_tree(shown, word)


def test_what_a_policy_cut_is_drawn_too():
    """Rows are matched by their paths: the whole tree has them in another order, and lacks one."""
    whole = tree([1, 3, 2, 4, 8, 9], [-1, 0, 0, 2, 1, 3], [1, 0.1, 0.8, 0.6, 0.05, 0.3])
    shown = make_picture(output(), 1, whole)
    assert shown.token.tolist() == [1, 3, 2, 4, 8, 9, 5] and shown.parent.tolist() == [
        -1,
        0,
        0,
        2,
        1,
        3,
        2,
    ]
    assert shown.verified.tolist() == [True, True, True, True, False, False, True]
    assert (
        shown.accepted.tolist() == [True, False, True, True, False, False, False] and shown.end == 3
    )
    lines = text_view.format_tree(shown, word, colour=True).splitlines()
    assert lines[0] == "round 1: 5 of 7 rows verified, 2 drafted accepted, then the bonus"
    assert [line for line in lines if "not verified" in line] == [
        "\x1b[2m│  └─ ' mat'            0.50  0.05  not verified\x1b[0m",
        "\x1b[2m   │  └─ '.'            0.50  0.30  not verified\x1b[0m",
    ]


def test_text_marks_who_made_it():
    plain = text_view.format_tokens(output(), words)
    assert plain.splitlines()[0] == "the[ cat sat] on[ a]"
    legend = (
        "[3 drafted and accepted], 1 bonus, the target's own, 1 from the prefill; "
        "2 rounds, 2.00 tokens per round with the bonus"
    )
    assert plain.splitlines()[2] == legend
    assert (
        text_view.format_tokens(output(), lambda ids: words(ids).removesuffix(" a")).splitlines()[0]
        == "the[ cat sat] on"
    )
    assert "\x1b[32m cat sat\x1b[0m\x1b[33m on\x1b[0m" in text_view.format_tokens(
        output(), words, colour=True
    )


def test_pieces_join_to_the_text_where_a_character_is_split():
    data = "a 😀é b".encode()

    def decode(ids):
        return bytes(ids).decode(errors="replace")

    pieces = text_view.split_pieces(data, decode)
    assert "".join(pieces) == "a 😀é b" and len(pieces) == len(data)
    assert pieces[2:6] == ["", "", "", "😀"]
    assert "".join(text_view.split_pieces(data[:4], decode)) == decode(data[:4]), (
        "a text may end inside a character"
    )


def test_a_continuation_is_shown_with_its_first_space():
    """Its tokenizer leaves out the first space of a text of its own."""
    out = output(tokens=(2, 4, 4, 6, 7))

    def decode(ids):
        return words(ids).removeprefix(" ")

    for text in (" cat sat sat on a", "cat sat sat on a", " cat", ""):
        whole = dataclasses.replace(out, text=text)
        shown = "".join(text_view.split_text(whole, decode))
        assert shown.startswith(text) and shown.strip() == "cat sat sat on a"


def test_colour_is_for_terminals_without_no_color():
    assert text_view.wants_colour(True, {"TERM": "xterm"})
    assert not text_view.wants_colour(False, {}) and not text_view.wants_colour(
        True, {"NO_COLOR": "1"}
    )
    assert not text_view.wants_colour(True, {"TERM": "dumb"}) and text_view.wants_colour(
        True, {"NO_COLOR": ""}
    )


def test_mistakes():
    with pytest.raises(ValueError, match="trace=True"):
        notebook.show_text(output(None))
    with pytest.raises(ValueError, match="trace=True"):
        notebook.show_tree(output(()))
    with pytest.raises(ValueError, match="round is 3: this decode took 2 rounds"):
        notebook.show_tree(output(), 3)
    with pytest.raises(ValueError, match="tree.gif: give a file name"):
        notebook.show_tree(output(), 1).save("tree.gif")


def test_notebook_views(tmp_path):
    view = notebook.show_tree(output())
    assert view.shown.number == 1 and "round 1" in str(view), "the round that committed the most"
    drawn = "".join(ElementTree.fromstring(view._repr_svg_()).itertext())
    assert "0.75 (0.60)" in drawn and "round 1: 5 rows verified" in drawn
    for name in ("tree.svg", "tree.txt", "tree.png"):
        view.save(tmp_path / name)
    assert (tmp_path / "tree.txt").read_text() == f"{view}\n" and (
        tmp_path / "tree.png"
    ).read_bytes()[1:4] == b"PNG"
    html = notebook.TextView(output(), lambda ids: "".join(f"<{i}>" for i in ids))._repr_html_()
    assert ElementTree.fromstring(f"<p>{html}</p>") is not None
    assert html.count("accepted, round") == 3 and "&lt;2&gt;" in html and "2 rounds" in html


@pytest.fixture
def fake(monkeypatch):
    """The library without its computations; the options that `decode` was called with."""
    calls = []

    def decode(params, prompt, **options):
        calls.append((prompt, options))
        return output()

    params = SimpleNamespace(
        tokenizer=None, spec=SimpleNamespace(tokenizer=None, drafters=(), default_drafter="ar")
    )
    monkeypatch.setattr(jaxspec, "load", lambda model, **options: params)
    monkeypatch.setattr(jaxspec, "decode", decode)
    return calls


def test_commands(fake, capsys, tmp_path):
    assert cli.main(["generate", "--token-ids", "--prompt", "5", "--show"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1[ 2 4] 6[ 7]\n") and "2 rounds" in printed
    assert cli.main(["tree", "m", "5 6", "--token-ids", "--round", "2", "--budget", "9"]) == 0
    assert capsys.readouterr().out.startswith("round 2: 3 rows verified, 1 drafted accepted\n")
    assert fake[-1][0] == [5, 6] and fake[-1][1]["trace"] and fake[-1][1]["budget"] == 9
    assert cli.main(["tree", "m", "5", "--token-ids", "--out", str(tmp_path / "t.svg")]) == 0
    assert "round 1" in capsys.readouterr().out and (tmp_path / "t.svg").stat().st_size > 1000
    assert cli.main(["tree", "m", "5", "--token-ids", "--round", "9"]) == USER_ERROR
    assert "round is 9" in capsys.readouterr().err


def test_the_tree_command_shows_the_target_if_asked(fake, monkeypatch, capsys):
    scored = output((SCORED, LAST))
    monkeypatch.setattr(jaxspec, "decode", lambda *args, **options: scored)
    given = ["tree", "m", "5", "--token-ids", "--round", "1", "--target"]
    assert cli.main(given) == 0
    assert "rank-1 gap by depth, nats: -0.12 +13.41" in capsys.readouterr().out
    assert cli.main([*given[:-1]]) == 0 and "gap" not in capsys.readouterr().out
    assert cli.main([*given, "--temperature", "1"]) == USER_ERROR
    assert "give --coupled off" in capsys.readouterr().err
    assert cli.main([*given, "--temperature", "1", "--coupled", "off"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_uncut_tree_is_the_one_that_the_policy_cut(temperature):
    params = jaxspec.load(GOLDEN / "dflash/target", drafter={"jetspec": GOLDEN / "jetspec/drafter"})
    table = make_costs((1, 2, 4, 8), (1.0,), (1e-4,), [[1e-3]] * 4)
    options = {"drafter": "jetspec", "budget": 8, "max_new_tokens": 12, "temperature": temperature}
    options["policy"] = make_bastion(table, rows=3)
    prompt = [117, 142, 122, 64, 240, 19]
    options = group_options(**options)
    out = jaxspec.decode(params, prompt, trace=True, **options)
    for number in (1, 3):
        whole = grow_unpruned_tree(params, prompt, number, **options)
        cut = out.rounds[number - 1].tree
        assert len(cut.token) == 3 and len(whole.token) == 8
        for name in ("token", "parent", "depth", "logprob"):
            np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name)[:3])
        assert notebook.show_tree(out, number, whole=whole).shown.verified.sum() == 3
