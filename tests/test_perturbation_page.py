"""The perturbation page without a browser: every experiment runs and says what it costs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.runtime.scriptrunner import StopException
from streamlit.testing.v1 import AppTest

from attnprobe.analyses.perturbation import adversary, experiments
from attnprobe.analyses.perturbation.agreement import null_sd
from attnprobe.figures.violins import violins
from attnprobe.metrics import Quantity
from attnprobe.ui.perturbation import undefined_said
from attnprobe.ui.perturbation_readings import pairs
from attnprobe.ui.perturbation_searches import NEVER

PAGE = Path(__file__).parents[1] / "pages" / "6_Perturbation.py"
PANELS = ("Permutation and replacement", "Adversary", "Agreement", "Erasure", "The reply")
CHOICE = "perturbation:widget"


def opened(model, panel, text="the cat sat on the mat", **state):
    app = AppTest.from_file(str(PAGE), default_timeout=120)
    app.query_params["model"] = str(model)
    app.query_params["perturbation"] = panel
    app.session_state["typed"] = text
    for key, value in state.items():
        app.session_state[key] = value
    return app.run()


def started(app, name):
    return app.button(key=f"{name}:start").click().run()


def written(app):
    return "\n".join([element.value for element in (*app.caption, *app.markdown)])


@pytest.fixture(scope="module")
def models(tiny_folder):
    return {"bert": tiny_folder("bert-classifier"), "gpt2": tiny_folder("gpt2")}


@pytest.mark.parametrize("panel", PANELS)
def test_every_experiment_opens_with_its_cost_and_without_an_error(models, panel):
    app = opened(models["bert"], panel)
    assert not app.exception
    assert not app.error
    if panel != "The reply":
        assert "runs of a text" in written(app)


def test_a_click_opens_another_experiment_and_the_link_follows(models):
    app = opened(models["bert"], PANELS[0])
    for panel in (PANELS[3], PANELS[1]):
        experiment = next(each for each in app.get("button_group") if each.key == CHOICE)
        app = experiment.set_value(panel).run()
        assert not app.exception
        assert app.query_params["perturbation"] == panel
        assert app.button(key=f"{panel.lower()}:start")


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_permutations_are_drawn_beside_their_baselines(models, kind):
    app = opened(models[kind], PANELS[0], "a cat ran", permutations=10, permutation_others=2)
    app = started(app, "permutation")
    assert not app.exception
    assert not app.error
    assert [metric.label for metric in app.metric if metric.label.startswith("TVD")] == [
        "TVD, uniform",
        "TVD, mean of others",
        "TVD, ablation",
        "TVD, first token",
        "TVD, other text's",
    ]
    alone = [metric.value for metric in app.metric if "other" in metric.label]
    assert "undefined" not in alone
    assert "Other texts are bundled ones at least as long." in written(app)
    assert len(app.get("vega_lite_chart")) == 4
    said = written(app)
    assert "median TVD over 10 permutations of all valid keys, seed 0, against the peak" in said
    assert "the middle half of the permutations" in said
    assert "Undefined" not in said


def test_the_adversary_is_labelled_as_a_demonstration(models):
    app = opened(models["bert"], "Adversary", adversary_steps=10, adversary_restarts=2)
    app = started(app, "adversary")
    assert not app.exception
    assert not app.error
    assert "no score of a head" in written(app)
    assert "TVD ≤ 0.01 in the search and in the filter" in written(app)
    assert len(app.get("vega_lite_chart")) == 3


def test_a_stopped_adversary_shows_what_it_found_and_goes_on(models, monkeypatch):
    """Stopped as by the button: the script ends at the next step of the only text's search."""
    whole = adversary.adversarial

    def stopped(run, scope, settings, tick):
        for found in whole(run, scope, settings, tick):
            if found.steps > 4:
                raise StopException
            yield found

    settings = {"adversary_steps": 10, "adversary_restarts": 2, "adversary_epsilon": 0.3}
    monkeypatch.setattr(experiments, "EARLY", 0.0)
    app = opened(models["bert"], "Adversary", "a dog ran", **settings)
    with monkeypatch.context() as patched:
        patched.setattr(experiments, "adversarial", stopped)
        app = started(app, "adversary")
        app = app.button(key="adversary:stop").click().run()
    assert not app.exception
    assert "Stopped after 0.4 of 1; what was found by then is shown." in written(app)
    assert "was stopped after 4 of 10 steps" in written(app)
    assert "2 restarts of 4 steps (stopped, 10 were asked for)" in written(app).replace("\\", "")
    assert len(app.get("vega_lite_chart")) == 3
    app = started(app, "adversary")
    assert not app.exception
    assert "topped" not in written(app)
    assert "2 restarts of 10 steps" in written(app)


@pytest.mark.parametrize(("panel", "name"), [("Agreement", "agreement"), ("Erasure", "erasure")])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_agreement_and_erasure_leave_special_tokens_out(models, kind, panel, name):
    app = started(opened(models[kind], panel, "a cat ran"), name)
    assert not app.exception
    assert not app.error
    assert "pecial tokens" in written(app)
    assert len(app.get("vega_lite_chart")) >= 1


@pytest.mark.parametrize(("flips", "text"), [(0.0, "a dog ran"), (1.0, "the cat ran")])
def test_only_where_no_order_flips_the_decision_the_page_says_so(models, flips, text, monkeypatch):
    def erased(*args, **options):
        share, frame = list(whole(*args, **options))[-1]
        yield share, frame.assign(flips=(frame["order"] == "chance") * flips)

    whole = experiments.erasure
    monkeypatch.setattr(experiments, "erasure", erased)
    app = started(opened(models["bert"], "Erasure", text), "erasure")
    assert not app.exception
    assert (NEVER in written(app)) == (flips == 0)


def taus(n, texts):
    row = {
        "yardstick": False, "attention": "attention", "importance": "gradient", "tau": 0.5,
        "weighted_tau": 0.5, "top_overlap": 1.0, "top_chance": 0.5, "null_sd": null_sd(n), "n": n,
    }  # fmt: skip
    return pd.DataFrame([row] * texts)


@pytest.mark.parametrize(
    ("n", "texts", "end"),
    [
        (2, 1, 1.0),
        (3, 1, 1.0),
        (3, 4, 1.96 * np.sqrt(22 / 54) / 2),
        (9, 1, 1.96 * np.sqrt(46 / 648)),
    ],
)
def test_where_tau_lies_by_chance_never_leaves_the_values_that_tau_can_have(n, texts, end):
    table = pairs(taus(n, texts))
    assert table["chance_high"].item() == pytest.approx(end)
    assert table["chance_low"].item() == pytest.approx(-end)


def test_an_edit_is_said_to_be_undefined_only_where_it_is():
    edits = ["uniform", "mean", "zero", "first token", "frozen", "permutation"]
    table = pd.DataFrame({"edit": edits, "tvd": 0.1})
    assert undefined_said(table) == ""
    short = table.assign(tvd=[0.1, 0.1, 0.0, 0.1, np.nan, 0.1])
    assert undefined_said(short) == "Undefined, frozen: no other text is long enough. "


def test_a_text_of_one_word_is_refused_in_one_sentence(models):
    app = opened(models["bert"], "Erasure", "cat")
    assert not app.exception
    assert "the model reads 4 to 64 tokens" in app.error[0].value


def test_checkpoints_are_compared_head_by_head(models):
    app = opened(models["bert"], "The reply", reply_checkpoints=str(models["bert"]))
    app = started(app, "checkpoints")
    assert not app.exception
    assert not app.error
    assert len(app.get("vega_lite_chart")) == 1


def test_an_other_architecture_is_one_sentence(models):
    app = opened(models["bert"], "The reply", reply_checkpoints=str(models["gpt2"]))
    app = started(app, "checkpoints")
    assert not app.exception
    assert "differ in architecture" in app.error[0].value


def test_violins_are_as_wide_as_the_share_of_values_and_no_wider_than_their_place():
    frame = pd.DataFrame(
        {
            "group": ["a"] * 3 + ["b"] * 2,
            "tvd": [0.0, 0.1, 0.2, 0.0, 0.1],
            "right": [0.1, 0.2, 0.3, 0.1, 0.2],
            "share": [0.5, 0.25, 0.25, 0.0, 1.0],
            "n": [4, 4, 4, 2, 2],
        }
    )
    spec = violins(frame, Quantity("tvd", "TVD"), "group").to_dict()
    (values,) = spec["datasets"].values() if "datasets" in spec else [spec["data"]["values"]]
    drawn = pd.DataFrame(values)
    assert drawn["rim"].sub(drawn["left"]).tolist() == pytest.approx([0.84, 0.42, 0.42, 0.84])
    assert ((drawn["rim"] + drawn["left"]) / 2).tolist() == pytest.approx([0, 0, 0, 1])
