"""Perturbation: does what the model says hang on where this head looks?"""

from attnprobe import ui
from attnprobe.ui import perturbation, perturbation_readings, perturbation_searches
from attnprobe.ui.experiments import experiment
from attnprobe.ui.perturbing import perturbing

PANELS = {
    "Permutation and replacement": perturbation.permutations,
    "Adversary": perturbation_searches.adversaries,
    "Agreement": perturbation_readings.agreement,
    "Erasure": perturbation_searches.erasing,
    "The reply": perturbation_readings.the_reply,
}

with ui.page(
    "Perturbation", question="Does what the model says hang on where its heads look?"
) as view:
    perturbation_readings.how_to_read()
    with ui.card("Texts, read-out and edited weights"):
        state = perturbing(experiment(view, one_text=True))
    panel = ui.choice("Experiment", list(PANELS), key="perturbation", url=True)
    PANELS[panel](state)
