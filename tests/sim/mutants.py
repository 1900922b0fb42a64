"""Deliberate bugs in the protocol, each of which the simulator has to find.

    python tests/sim/mutants.py [--seeds 2000] [NAME ...]

Each mutant changes a line of ``csrc/protocol``: the file is compiled alone, linked with the
simulator before the library, and run. Needs what ``make ctests`` builds. Prints the first failure
of each, and at the end those that no seed found. Bugs that break no promise, because another line
guards it too, are not here; those of which the circumstances are too rare for seeds have tests in
``tests/unit``.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread", "-Icsrc", "-Icsrc/include"]
SEEDS = 2000
LIBRARIES = ["-lcrypto", "-lm", "-pthread", "-ldl"]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One bug: in ``file`` of csrc/protocol ``right`` becomes ``wrong``.

    ``also``: further such changes, where two lines guard the same promise and either is enough.
    """

    name: str
    file: str
    right: str
    wrong: str
    also: tuple[tuple[str, str, str], ...] = ()


MUTANTS = [
    # What a master that was started again makes of what it is told.
    Mutant("a_doubt_is_always_committed", "master_settle.c",
           "if (in_list(master, node) && !agrees)", "if (agrees && !agrees)"),
    Mutant("the_lowest_version_wins", "master_settle.c",
           "node->held.version > best->held.version", "node->held.version < best->held.version"),
    Mutant("nobody_is_waited_for_after_a_restart", "master_settle.c",
           "    if (somebody_fetches(master)) {\n        return waited_us",
           "    if (waited_us >= 0) {\n        return true;\n    }\n"
           "    if (somebody_fetches(master)) {\n        return waited_us"),
    Mutant("an_epoch_is_used_again_after_a_restart", "master_settle.c",
           "master->highest.incarnation = join->epoch.incarnation + 1 + own;", "(void)own;"),
    Mutant("a_later_version_that_comes_back_is_ignored", "master_join.c",
           "newcomer->held.version <= master->version", "newcomer->held.version > 0"),
    # Verdicts.
    Mutant("one_member_done_is_enough", "master_round.c",
           "if (node->listed && node->standing != STANDING_DONE)",
           "if (node->listed && node->standing != STANDING_DONE && node->slot == 0)"),
    Mutant("means_are_not_compared", "master_round.c",
           "if (most_count == master->listed_count)", "if (most_count > 0)"),
    Mutant("an_abort_is_not_told", "master_verdict.c",
           "| OWE_VERDICT;", "| (type == FRAME_COMMIT ? OWE_VERDICT : 0);"),
    Mutant("a_node_with_a_nan_is_not_left_out", "master_verdict.c",
           "node->left_out = true;", "node->left_out = false;"),
    Mutant("nobody_is_dropped_for_failed_rounds", "master_verdict.c",
           "node->blame >= MASTER_BLAME_MAX &&", "node->blame > 1000 &&"),
    Mutant("an_old_anchor_counts_as_confirmed", "master_verdict.c",
           "master->digest_known = false;", ";"),
    Mutant("the_jobs_steps_are_not_counted", "master_verdict.c",
           "master->job_step = master->msg_begin.as.begin.job_step;", ";"),
    Mutant("a_commit_on_a_done_of_another_attempt_is_applied", "master_round.c",
           "!round_id_equal(done->id, master->round)", "done->id.round != master->round.round",
           (("member_round.c", "member->round.phase != ROUND_DONE || verdict->mean_digest != "
             "member->round.mean_digest", "member->round.phase == ROUND_IDLE"),)),
    # Rounds begin.
    Mutant("a_round_begins_before_all_are_ready", "master_round.c",
           "if (node->listed && node->standing != STANDING_READY)",
           "if (node->listed && node->standing != STANDING_READY && node->slot == 0)"),
    Mutant("a_weight_is_not_what_the_node_said", "master_round.c",
           "if (by_samples || node->ready.steps == 0)", "if (node->ready.steps == 0)"),
    Mutant("fewer_than_min_nodes_go_on", "master_round.c",
           "master->listed_count >= master->config.min_nodes ||", "master->listed_count >= 1 ||"),
    # Who is in.
    Mutant("the_silent_are_never_dropped", "master.c",
           "if (master->now_us < node->heard_us + master->config.lease_us)",
           "if (master->now_us < node->heard_us + 100 * master->config.lease_us)"),
    Mutant("the_end_is_not_told", "master.c",
           "send_shared(out, node->conn, &master->msg_end);", ";"),
    Mutant("the_job_never_ends_for_joiners", "master_join.c",
           "(founders == 0 && !master->config.linger)", "(founders == 0 && nodes == 0)"),
    Mutant("any_anchor_counts_as_the_jobs", "master_join.c",
           "return node->held.held && node->held.version == master->version &&\n"
           "           node->held.digest == master->digest;", "return node->held.held;"),
    Mutant("a_changed_list_keeps_its_epoch", "master_list.c", "master->epoch.counter++;", ";"),
    Mutant("an_odd_anchor_stays", "master_list.c",
           "node->held.digest != master->digest)", "node->held.digest == 0)"),
    # A member's merge.
    Mutant("frames_of_an_old_attempt_are_taken", "member_link.c",
           "if (order < 0 || !merge_exchanging(member))", "if (!merge_exchanging(member))"),
    Mutant("sends_of_an_old_attempt_are_counted", "member_link.c",
           "round_id_equal(id_of(frame), member->round.id))", "frame->chunk != UINT32_MAX)"),
    Mutant("a_later_attempts_frames_are_thrown_away", "member_link.c",
           "? TAKE_DROP : TAKE_LATER;", "? TAKE_DROP : TAKE_DROP;"),
    Mutant("work_of_another_attempt_counts", "member_round.c",
           "return merge_exchanging(member) && round_id_equal(event->id, member->round.id);",
           "return merge_exchanging(member);"),
    Mutant("residuals_are_kept_over_other_members", "member_round.c",
           "action->flag = epoch_compare(member->residual_epoch, begin->id.epoch) != 0;",
           "action->flag = false;"),
    Mutant("a_round_goes_on_without_a_master", "member_control.c",
           "if (member->state == MEMBER_IN_ROUND && member->round.phase == ROUND_EXCHANGING) {\n"
           "        merge_drop", "if (member->state == MEMBER_OFF) {\n        merge_drop"),
    Mutant("a_goodbye_is_not_said", "member.c",
           "if (member->control == CONTROL_ADMITTED) {\n        struct msg *msg = out_msg(out, "
           "FRAME_LEAVE)", "if (member->control == CONTROL_CONNECTING) {\n"
           "        struct msg *msg = out_msg(out, FRAME_LEAVE)"),
    Mutant("a_wait_has_no_deadline", "member.c",
           "return since + member->config.timeout_us;",
           "return since + 100 * member->config.timeout_us;"),
    # An anchor's way to a joiner.
    Mutant("a_joiner_begins_with_its_own_values", "member_state.c",
           "bool held = member->held.held && !member->catchup.active &&",
           "bool held = member->held.held && !member->catchup.active && !order->own &&"),
    Mutant("a_rejoiner_keeps_its_values", "member_state.c",
           "member->rejoined = member->joined;", "member->rejoined = false;"),
    Mutant("an_anchor_is_served_while_it_changes", "member_state.c",
           "member->held.version == version && !merge_applying(member) &&",
           "member->held.version == version &&"),
    Mutant("the_momentum_is_not_fetched", "catchup.c",
           "catchup->total += momentum ? momentum_chunks(&catchup->plan) : 0;", ";"),
    # The exchange.
    Mutant("a_sum_lacks_its_last_contribution", "shard.c",
           "return here == shard->contributors ?", "return here + 1u >= shard->contributors ?"),
    Mutant("a_contribution_counts_twice", "shard.c",
           "    bit_set(shard->here, (uint64_t)(chunk - shard->first) * shard->members + slot);\n",
           ""),
    Mutant("deltas_run_ahead_of_their_means", "round.c",
           "slot->encode_next >= slot->means + round->plan.window",
           "slot->encode_next >= slot->means + 100 * round->plan.window"),
    Mutant("encodings_have_no_limit", "round.c",
           "slot->sends < sends_max(round) && slot->deltas < sends_max(round) / 2 &&\n"
           "            round->encoded < ROUND_ENCODED_MAX", "true"),
    Mutant("a_mean_is_whole_too_early", "round.c",
           "return round->mean_count == round->plan.chunk_count;",
           "return round->mean_count + 1 >= round->plan.chunk_count;"),
]  # fmt: skip


def sources(mutant: Mutant) -> dict[str, str]:
    """The files with this bug in them."""
    out = {}
    for file, right, wrong in ((mutant.file, mutant.right, mutant.wrong), *mutant.also):
        text = (ROOT / "csrc" / "protocol" / file).read_text()
        if text.count(right) != 1:
            raise ValueError(f"{mutant.name}: {file} has its line {text.count(right)} times")
        out[file] = text.replace(right, wrong)
    return out


def build(mutant: Mutant, folder: pathlib.Path) -> pathlib.Path:
    """The simulator with this bug in it."""
    for file, text in sources(mutant).items():
        (folder / file).write_text(text)
    program = folder / "sim"
    objects = sorted((BUILD / "tests" / "sim").glob("*.o"))
    command: list[str | pathlib.Path] = ["gcc", *FLAGS, *folder.glob("*.c"), *objects]
    command += [BUILD / "libsolo.a", *LIBRARIES, "-o", program]
    subprocess.run(command, cwd=ROOT, check=True)
    return program


def found(mutant: Mutant, seeds: int) -> str:
    """How the simulator finds it; "": it does not."""
    with tempfile.TemporaryDirectory() as name:
        program = build(mutant, pathlib.Path(name))
        command = [program, "--seeds", str(seeds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode == 0:
        return ""
    told = re.search(r"^seed .*$", done.stdout, re.MULTILINE)
    return told[0] if told else f"ended with {done.returncode}: {done.stderr.strip()[-200:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    missed = []
    for mutant in MUTANTS:
        if arguments.names and mutant.name not in arguments.names:
            continue
        how = found(mutant, arguments.seeds)
        print(f"{mutant.name}: {how or 'NOT FOUND'}", flush=True)
        missed += [] if how else [mutant.name]
    print(f"not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
