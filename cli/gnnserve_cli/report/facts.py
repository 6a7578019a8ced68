"""How a revision was made, as names and values: the same on the page and in the terminal."""

from __future__ import annotations

from gnnserve_api.files.given_weights import says_assumed
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.repository import NOT_RANKED, AttentionManifest
from gnnserve_api.files.training import TrainingManifest, TrainingRun, says_attempts, says_learnt, says_length
from gnnserve_api.spec.model import column_blocks, reads_embeddings, says_hops
from gnnserve_cli.report.data import ModelFit, Report
from gnnserve_cli.report.words import ms, number


def made_facts(report: Report) -> list[tuple[str, str]]:
    made = report.provenance
    network = made.network
    threads = "1 thread" if report.threads == 1 else f"{report.threads} threads"
    fanouts = "all neighbours" if network.fanouts[0] < 0 else ", ".join(str(fanout) for fanout in network.fanouts)
    stated = ", ".join(f"{name} {value:g}" for name, value in made.ranking_settings.items())
    settings = f" ({stated})" if stated else ""
    scored = report.variants[0].judged.describe_outputs(report.classes, multi_label=report.multi_label)
    model = [network.architecture]
    if len(network.fanouts) > 1:
        model.append(f"hidden {network.hidden:,}")
    if network.mlp_hidden is not None:
        model.append(f"{network.mlp_hidden:,} between the two products of a layer")
    if network.attention is not None:
        model.append(_heads(network.attention, len(network.fanouts)))
    model.append(f"fan-outs {fanouts}" if network.hops is None else says_hops(network))
    features = report.features // column_blocks(network.architecture, network.hops)
    if not learns_nothing(made) and (made.training is not None or not made.has_given_weights):
        model.append(f"{made.scope.lower()} training")
    weights = f"given: SHA-256 {made.checkpoint}" if made.checkpoint else "trained"
    if learns_nothing(made):
        weights = "embeddings computed of the graph, without training"
    return [
        ("Service", report.service),
        ("Revision", report.revision),
        ("Recipe", report.recipe),
        ("Published", f"{made.created_at[:19].replace('T', ' ')} UTC"),
        ("Made by", made.generator),
        ("Measured on", f"{report.machine}, {threads}"),
        *([] if report.device is None else [("Computed on", report.device)]),
        ("Graph", f"{made.source} (digest {made.graph})"),
        (
            "Of size",
            f"{report.nodes:,} nodes, {made.edges:,} edges, {features:,} features, {scored}",
        ),
        *([] if made.edge_rules is None else [("Edges", made.edge_rules.in_words)]),
        ("Splits", _splits(report)),
        ("Model", ", ".join(model)),
        *((f"Fan-outs of {name}", ", ".join(map(str, drawn))) for name, drawn in made.relation_fanouts.items()),
        *([] if made.given and not made.checkpoint and made.ranking_method == NOT_RANKED else [("Weights", weights)]),
        *((f"Weights of {name}", f"given: SHA-256 {digest}") for name, digest in made.given.items()),
        *([("Assumed of the weights", says_assumed(made.assumptions))] if made.assumptions else []),
        *(("Compared", one.in_words) for one in made.compared),
        *([] if made.training is None else [("Trained for", says_length(made.training))]),
        *((f"{run.name} was trained again", says_attempts(run)) for run in _runs(made.training) if run.attempts),
        *((f"{run.name} learnt from", says_learnt(run)) for run in _runs(made.training) if run.tried),
        *([] if made.chosen_factors is None else [("Factors", made.chosen_factors.why)]),
        ("Ranking", "none" if made.ranking_method == NOT_RANKED else f"{made.ranking_method}{settings}"),
    ]


def _splits(report: Report) -> str:
    held_out = f"{report.validation_items:,} validation, {report.test_items:,} test {report.variants[0].judged.item}s"
    if report.variants[0].task_figures is not None:
        return f"{held_out}; training has the others"
    return f"{report.provenance.train_nodes:,} training, {held_out}"


def learns_nothing(made: Provenance) -> bool:
    """Whether embeddings were computed of the graph: LightGCN with `task.links.comparedWith: Nothing`."""
    return reads_embeddings(made.network.architecture) and made.training is None


def _runs(training: TrainingManifest | None) -> tuple[TrainingRun, ...]:
    return () if training is None else training.runs


def _heads(attention: AttentionManifest, layers: int) -> str:
    last = attention.output_heads
    if layers == 1 or last == attention.heads:
        return f"{last} {'head' if last == 1 else 'heads'}"
    return f"{attention.heads} {'head' if attention.heads == 1 else 'heads'}, {last} in the last layer"


def model_facts(fit: ModelFit) -> list[tuple[str, str]]:
    facts = [("Rows read per node", number(fit.rows_per_seed))]
    for name, rate, unit, fixed_ms in (
        ("Gathering", fit.gather_gigabytes_per_s, "GB/s", fit.gather_fixed_ms),
        ("Computing", fit.compute_gigaoperations_per_s, "GOP/s", fit.compute_fixed_ms),
    ):
        if fixed_ms is not None:
            facts.append((name, f"{ms(fixed_ms)} fixed" + ("" if rate is None else f", then {number(rate)} {unit}")))
    return facts
