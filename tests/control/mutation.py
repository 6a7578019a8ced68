"""Takes one guard of the operator away at a time, and says which test notices.

    python -m tests.control.mutation [NAME …]

A guard is one edit of a source file, made in a copy of the tree. A guard that no test misses is not needed, or not
tested. Each is tried on the test that is to notice; should that pass, on all unit tests, and then on the campaign.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPERATOR = Path("operator/gnnserve_operator")
_COPIED = ("operator", "crds", "tests/control", "tests/support", "tools")
_FOLDERS = ("", "operator", "crds")
UNIT = (
    "test_apply", "test_report", "test_cluster", "test_observed", "test_observe", "test_diff", "test_plan_edits",
    "test_plan_jobs", "test_plan_claims", "test_plan_repair", "test_plan_patience", "test_plan_routing", "test_loop",
    "test_plan_status", "test_plan_queue", "test_job_refusals", "test_reverts", "test_news", "test_retention",
    "test_plan_availability",
)  # fmt: skip
"""The quick ones first."""
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Guard:
    name: str
    file: str
    line: str
    """What is there once, and once only."""
    without: str
    """What stands there instead."""
    caught_by: str
    """The test that is to notice; tried before all others."""


GUARDS = (
    Guard("somebody else's object is not touched", "apply.py",
          "    return NameOccupancy.TAKEN", "    return NameOccupancy.OURS",
          "test_apply.py::test_whose_place_it_is"),
    Guard("children of a deleted namesake are waited for", "apply.py",
          "    if (owner.kind, owner.name) != (kind, service):", "    if owner.is_bound:",
          "test_apply.py::test_a_child_of_a_deleted_service_of_the_same_name_is_waited_for"),
    Guard("our own write is not repeated while the watch is behind", "apply.py",
          "            return False  # the watch has not reported our own write yet", "            pass",
          "test_apply.py::test_what_needs_to_be_applied"),
    Guard("a Job is not made before the claim that it generates into", "apply.py",
          "if live is None and kinds_under(ref.kind) & leaving:", "if False:",
          "test_apply.py::test_a_job_is_not_made_before_the_claim_that_it_generates_into"),
    Guard("a Job is not made while the claim that it generates into is refused", "apply.py",
          "if change.is_new and under is not None:", "if False:",
          "test_apply.py::test_a_job_is_not_made_while_its_claim_is_refused"),
    Guard("an edit by hand is undone", "apply.py",
          " or not is_declared(_with_kept_template(desired, live), live)", "",
          "test_apply.py::test_what_was_edited_by_hand_is_restored_and_what_was_added_stays"),
    Guard("a write holds for the version that it was decided on", "apply.py",
          'metadata |= {"uid": live["metadata"]["uid"], "resourceVersion": version}', "pass",
          "test_apply.py::test_an_object_that_changed_since_it_was_looked_at_is_left_to_the_next_look"),
    Guard("the service is read again before its children are written", "reconcile.py",
          "                await self._check_still_so(decided_on)", "                pass",
          "test_campaign.py::test_in_trouble_nothing_is_violated_and_the_end_is_the_same[delete_at_the_first_child]"),
    Guard("a Job that computes is not deleted for a claim that is not as its watch told", "reconcile.py",
          "(raw, *_grounds_of_unfinished(deletions, seen))", "(raw,)",
          "test_reconcile.py::test_a_job_that_computes_stays_where_the_watch_of_its_claim_is_behind"),
    Guard("a Job that compacts is not deleted for a table that is not as its watch told", "reconcile.py",
          "_GROUNDS = {CLAIM.name, CONFIG_MAP.name}", "_GROUNDS = {CLAIM.name}",
          "test_reconcile.py::test_a_job_that_compacts_stays_where_the_watch_of_its_table_is_behind"),
    Guard("what the API server refuses is told", "reconcile.py",
          "        if rejections != observed.rejections:", "        if False:",
          "test_campaign.py::test_in_peace_nothing_is_violated[refused_child]"),
    Guard("a leader that was overtaken writes no more", "cluster.py",
          "None if verb in _READS or self._leadership is None else self._leadership.remaining_s()", "None",
          "test_cluster.py::test_only_writes_without_an_answer_are_noted"),
    Guard("a status holds for the version that was judged", "report.py", ' | {"resourceVersion": follows}', "",
          "test_report.py::test_a_status_is_written_with_the_uid_and_the_version_it_is_about"),
    Guard("a status of an earlier generation is not that of this one", "observed.py",
          'is_of_this_spec and progressing.get("reason")', 'progressing.get("reason")',
          "test_observed.py::test_what_stopped_an_earlier_generation_of_a_deployment_is_not_said_of_the_next"),
    Guard("a Job that is done is not thrown away before it says so", "decide/jobs.py",
          "(pod.running or ended_well(pod))", "pod.running",
          "test_plan_jobs.py::test_a_job_whose_pod_is_done_before_it_says_so_is_not_thrown_away_for_another_image"),
    Guard("a Job that computes is not thrown away", "decide/jobs.py",
          "not job.is_over and _computes(job, observed, now)", "False",
          "test_plan_jobs.py::test_an_upgrade_of_the_image_does_not_throw_training_away"),
    Guard("a Job whose pod has not been told of is not thrown away", "decide/jobs.py",
          "    if not own and job.started_at:", "    if False:",
          "test_plan_jobs.py::test_a_job_whose_pod_has_not_been_told_of_is_not_thrown_away_for_another_image"),
    Guard("a Job that another suspends is said to be queued", "decide/jobs.py",
          "if running is not None and running.is_suspended_elsewhere:", "if False:",
          "test_plan_queue.py::test_a_job_that_another_suspends_is_left_so_and_its_service_is_queued"),
    Guard("a Job that a queue starts is not held", "decide/jobs.py", " or bool(wanted.queue)", "",
          "test_plan_queue.py::test_a_job_in_a_queue_waits_for_no_turn_and_counts_while_it_runs"),
    Guard("what a queue made of a Job's template stays", "apply.py",
          'if desired["kind"] != JOB.name or is_declared(desired["spec"]["template"], live["spec"]["template"]):',
          "if True:", "test_apply.py::test_what_a_queue_made_of_a_jobs_pod_template_is_left_though_its_labels_change"),
    Guard("a refusal of an earlier pod is not told", "observe.py", " and _time_of(event) >= since[:_SECONDS]", "",
          "test_job_refusals.py::test_the_last_refusal_counts_unless_a_pod_was_created_after_it"),
    Guard("what was set back is told", "apply.py",
          "        changed = await self._changed_by_others(change)\n", "        changed = None\n",
          "test_reverts.py::test_a_scaled_deployment_is_set_back_and_told_once"),
    Guard("a change of the spec is not called another's change", "apply.py",
          "if change.live is None or not may_be_reverted(change.live, change.digest):", "if change.live is None:",
          "test_reverts.py::test_a_change_of_the_spec_is_told_as_no_revert"),
    Guard("an edit of a child wakes its service", "handlers/news.py",
          "content_of(before) != content_of(now) or (read is not None and read(before) != read(now))",
          "read is not None and read(before) != read(now)", "test_news.py::test_what_is_news"),
    Guard("a status that another wrote wakes its service", "handlers/news.py",
          "        if not self.is_own_status(key, now):", "        if False:",
          "test_news.py::test_a_status_is_written_without_being_looked_at_for_it_and_set_back_where_another_writes_it"),
    Guard("what happened is looked at before the rest of a resync", "loop.py",
          "due + ROUTINE_WAIT_S if is_routine else due", "due",
          "test_loop.py::test_a_change_amid_a_resync_is_looked_at_before_the_rest_of_it"),
    Guard("a resync goes on one by one beside what happened", "loop.py",
          "if is_routine and 0 < len(self._routine) < len(self._running):", "if False:",
          "test_loop.py::test_beside_a_change_a_resync_goes_on_one_by_one"),
    Guard("one late answer of a worker is no outage", "probe.py",
          "if reply.is_late and pod.ready else reply", "if False else reply",
          "test_probe.py::test_a_ready_worker_whose_answer_is_late_is_asked_again"),
    Guard("the queue's label of a service is read", "handlers/news.py",
          " or queue_labels(now) != queue_labels(before)", "",
          "test_news.py::test_what_is_news"),
    Guard("a failed Job is not tried for ever", "decide/jobs.py",
          "if (exact.retries, exact.deadline_seconds) == (wanted.retries, wanted.deadline_seconds):", "if False:",
          "test_plan_jobs.py::test_a_failed_job_is_the_record_and_is_not_tried_again"),
    Guard("a Job on its way out is waited for", "decide/jobs.py",
          "    if any(job.name == wanted.name for job in observed.jobs):", "    if False:",
          "test_plan_jobs.py::test_a_job_on_its_way_out_is_waited_for"),
    Guard("pods are told of later than their Job", "decide/repository.py",
          "    return bool(job.succeeded_at) and abs(now - datetime.fromisoformat(job.succeeded_at)) < _LONGEST_LAG",
          "    return False",
          "test_plan_jobs.py::test_a_job_that_is_done_is_not_made_again_while_the_watch_of_pods_is_behind"),
    Guard("a lost claim takes its Jobs with it", "decide/repository.py",
          "return repository.claim is None or job.created_at < repository.claim.created_at", "return False",
          "test_plan_claims.py::test_a_claim_that_was_deleted_takes_its_revisions_with_it"),
    Guard("a lost claim takes its table with it", "decide/repository.py",
          'if routing is not None and claims and routing.claim_uid not in {"", *(claim.uid for claim in claims)}:',
          "if False:",
          "test_plan_claims.py::test_a_claim_that_was_deleted_takes_its_revisions_with_it"),
    Guard("workers leave a lost claim", "decide/repository.py",
          'return "" if deployment.claim_uid in {"", claim.uid} else claim.uid', 'return ""',
          "test_plan_claims.py::test_workers_leave_a_claim_that_is_lost_for_the_one_that_took_its_place"),
    Guard("a claim that goes is not generated into", "decide/repository.py",
          "    if job.claim not in {\"\", repository.name}:", "    if False:",
          "test_plan_claims.py::test_what_a_job_generates_into_another_claim_is_lost_also_within_one_second"),
    Guard("what lies in a claim that goes is generated again", "decide/jobs.py",
          " and repository.keeps(published.claim_uid):", ":",
          "test_plan_claims.py::test_a_claim_that_is_being_deleted_is_told_at_once_and_another_one_is_filled"),
    Guard("an earlier graph does not come back", "decide/repository.py",
          "return max(ranked, key=lambda published: published.result.offset)", "return ranked[0]",
          "test_plan_compaction.py::test_a_job_whose_pod_is_gone_brings_no_earlier_revision_back"),
    Guard("changes since an earlier graph do not count", "decide/log_following.py",
          "and (route.revision, route.updates.base) == (published.result.revision, published.result.offset)", "",
          "test_plan_compaction.py::test_its_revision_is_published_and_workers_switch_while_they_answer"),
    Guard("a compaction that has failed is not tried for ever", "decide/log_following.py",
          "if is_due and now - ended_at >= _AGAIN:", "if is_due:",
          "test_plan_compaction.py::test_a_failure_is_told_and_workers_answer_on"),
    Guard("a compaction goes on when workers tell nothing", "decide/log_following.py",
          "    if exact is None and not is_due and not any(_goes_on(job, observed, now) for job in jobs.candidates):",
          "    if not is_due:",
          "test_plan_compaction.py::test_it_goes_on_to_the_end_whatever_workers_say_meanwhile"),
    Guard("a repair is of the claim in which the damage was found", "decide/repository.py",
          "    is_elsewhere = _is_of_other_claim(routing, published, repository)", "    is_elsewhere = False",
          "test_plan_repair.py::test_a_table_that_is_told_late_does_not_have_the_next_claim_repaired"),
    Guard("workers stay until there is a revision in the next claim", "decide/repository.py",
          "    claim = claims.get(declared_uid)\n", "    claim = repository.claim\n",
          "test_plan_claims.py::test_a_claim_that_is_being_deleted_is_told_at_once_and_another_one_is_filled"),
    Guard("what is waited for without an end is said to be stalled", "decide/status.py",
          "if now - wait.since < PATIENCE and not is_said:", "if not is_said:",
          "test_plan_patience.py::test_an_endpoint_that_stays_unreachable_is_stalled_after_a_while"),
    Guard("a Job that computes may take its time", "decide/status.py",
          " or is_in_turn or computes or ", " or is_in_turn or ",
          "test_plan_patience.py::test_a_job_that_computes_may_take_its_time"),
    Guard("a Job is not said to be made while its claim is on its way out", "decide/jobs.py",
          "(ref for ref in observed.leaving if ref.kind in _BEFORE_A_JOB)", "iter(())",
          "test_plan_jobs.py::test_a_job_is_not_said_to_be_made_while_its_claim_is_on_its_way_out"),
    Guard("a table that was edited by hand is not believed", "observed.py",
          "    if annotations.get(DIGEST_ANNOTATION) != routing_digest(data):", "    if False:",
          "test_observed.py::test_a_routing_config_map_is_believed_only_as_it_was_written"),
    Guard("pods of a deleted namesake do not count", "observe.py",
          ' and not _is_older(raw, since)', "",
          "test_observe.py::test_pods_of_a_deleted_service_of_the_same_name_do_not_count"),
    Guard("Ready needs workers of the declared revision", "decide/answers.py",
          "    if route.revision != declared.revision and", "    if False and",
          "test_plan_status.py::test_a_worker_that_answers_otherwise_keeps_it_from_ready"),
    Guard("Ready needs workers of the declared objective", "decide/answers.py",
          '("the objective", route.objective == declared.objective)', '("the objective", True)',
          "test_plan_status.py::test_an_edited_objective_is_not_ready_before_workers_have_it"),
    Guard("Available needs the endpoint", "decide/workers.py",
          "    if endpoint is None or not endpoint.revision:", "    if endpoint is None and not answering:",
          "test_plan_availability.py::test_it_is_decided_by_answers"),
    Guard("Available needs credentials that workers can use", "decide/workers.py",
          "    if not all(locked):", "    if True:",
          "test_plan_availability.py::test_credentials_count_where_no_request_is_answered_without"),
    Guard("workers that only the kubelet hears are not called unavailable", "decide/workers.py",
          "    if observed.pool is None and all(_is_silent(pod, observed) for pod in ready):", "    if False:",
          "test_plan_availability.py::test_it_is_decided_by_answers"),
    Guard("an endpoint that does not answer is looked at again", "decide/status.py",
          "    if available.holds or available.reason not in AWAITED or not ready_workers(observed):", "    if True:",
          "test_plan_availability.py::test_an_endpoint_that_does_not_answer_while_workers_do_is_looked_at_again_though_an_edit_failed"),
    Guard("Ready needs the end of a rollout", "decide/readiness.py",
          "    if not workers.is_rolled_out:", "    if False:",
          "test_plan_status.py::test_a_rolling_update_is_not_ready_before_it_is_done"),
    Guard("Ready needs the endpoint", "decide/answers.py",
          "    endpoint = observed.endpoint_answers\n",
          "    endpoint = observed.endpoint_answers or answers[ready[0].name].route\n",
          "test_plan_status.py::test_an_endpoint_that_does_not_answer_keeps_it_from_ready"),
    Guard("a service that is being deleted gets no children", "plan.py",
          "    if identity.deleting:\n        # Garbage collection", "    if False:\n        # Garbage collection",
          "test_plan_edits.py::test_a_deleted_service_is_left_to_garbage_collection"),
    Guard("a table that workers would refuse is not written", "decide/service_routing.py",
          "    if problem is not None:\n        # Workers would refuse",
          "    if False:\n        # Workers would refuse",
          "test_plan_routing.py::test_a_variant_that_the_revision_lacks_is_named_and_the_old_table_stays"),
    Guard("what builds on a foreign object is not made", "decide/contests.py",
          " and kinds_under(ref.kind).isdisjoint(taken_kinds)", "",
          "test_plan_status.py::test_nothing_builds_on_what_is_somebody_elses"),
    Guard("what another object controls is never taken over", "apply.py",
          "    if owner.is_bound:", "    if owner.is_bound and adoption is None:",
          "test_apply.py::test_whose_place_it_is"),
    Guard("what an earlier service left is taken over by one that a person allowed", "apply.py",
          "return NameOccupancy.OURS if adoption == owner.uid else NameOccupancy.RETAINED", "return NameOccupancy.OURS",
          "test_apply.py::test_whose_place_it_is"),
    Guard("a claim that was retained once stays so", "decide/repository.py",
          "    return is_usual or (claim is not None and claim.is_retained)", "    return is_usual",
          "test_retention.py::test_a_log_that_is_taken_out_of_the_spec_is_not_given_up"),
    Guard("a claim is released before anything else is looked at", "reconcile.py",
          "        await self._release(key, parsed, identity.uid)", "        pass",
          "test_retention.py::test_an_operator_that_begins_releases_claims_before_it_does_anything_else"),
    Guard("a place that one service takes is taken before another is planned", "reconcile.py",
          "            self.fleet.note(key, planned.standings, planned.followed)", "            pass",
          "test_fleet.py::test_six_services_at_once_are_generated_two_at_a_time_and_in_their_order"),
    Guard("a holder's last requests are waited for when its pod is gone", "decide/leadership.py",
          "now_s >= seen.gone_since_s + request_s", "now_s >= seen.gone_since_s",
          "test_leadership.py::test_a_lease_is_taken_when_its_holder_has_let_go"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    guard: Guard
    by: str | None
    """The test that noticed; None: none did."""

    @property
    def is_caught(self) -> bool:
        return self.by is not None


def count_places(guard: Guard) -> int:
    return (ROOT / OPERATOR / guard.file).read_text().count(guard.line)


def judge(guard: Guard) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="gnnserve-mutation-") as folder:
        tree = Path(folder)
        for part in _COPIED:
            shutil.copytree(ROOT / part, tree / part)  # with what is compiled, which holds for what is not altered
        shutil.copy(ROOT / "pyproject.toml", tree)
        source = tree / OPERATOR / guard.file
        text = source.read_text()
        if text.count(guard.line) != 1:
            raise ValueError(f"{guard.file}: {guard.line!r} is there {text.count(guard.line)} times, expected once")
        source.write_text(text.replace(guard.line, guard.without))
        tries = ([guard.caught_by], [f"{name}.py" for name in UNIT], ["test_campaign.py"])
        return Verdict(guard, next((by for tests in tries if (by := _first_failure(tree, tests)) is not None), None))


def judge_all(guards: Iterable[Guard], processes: int = os.cpu_count() or 1) -> Iterator[Verdict]:
    """Raises where a test that notices fails with every guard in place, too: it would tell nothing."""
    chosen = list(guards)
    expected = list(dict.fromkeys(guard.caught_by for guard in chosen))
    _check_whole(expected)
    with ThreadPoolExecutor(processes) as pool:
        for verdict in pool.map(judge, chosen):
            if verdict.by is not None and not verdict.by.startswith(verdict.guard.caught_by):
                _check_whole([verdict.by])
            yield verdict


def _check_whole(tests: list[str]) -> None:
    if (fails := _first_failure(ROOT, tests)) is not None:
        raise RuntimeError(f"{fails} fails with every guard in place")


def _first_failure(tree: Path, tests: list[str]) -> str | None:
    environment = {
        **os.environ, "PYTHONDONTWRITEBYTECODE": "1",
        # Before the installed package, which is the tree that this was copied from.
        "PYTHONPATH": os.pathsep.join(str(tree / folder) for folder in _FOLDERS),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--noconftest", "-p", "no:cacheprovider",
               *(f"tests/control/{test}" for test in tests)]  # fmt: skip
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode == 0:
        return None
    found = re.search(r"^FAILED \S*?([^/\s]+?::.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def main(names: list[str]) -> int:
    chosen = [guard for guard in GUARDS if not names or guard.name in names]
    missed = 0
    for verdict in judge_all(chosen):
        missed += not verdict.is_caught
        print(f"{'caught' if verdict.is_caught else 'MISSED'}: {verdict.guard.name} ({verdict.guard.file})")
        others = "" if verdict.by is None or verdict.by.startswith(verdict.guard.caught_by) else "; expected another"
        print(f"    {verdict.by or 'every test passes'}{others}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
