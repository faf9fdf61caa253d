"""Which test shows each failure scenario of docs/design/cluster.md (its section 7), by name.

Owns the table alone: `test_cluster_table.py` sees that each named test is there, and that no scenario is left out.
`python -m tests.playbooks.cases` prints all tests of each. A test of a scenario is called `test_cluster_d<number>_…`;
here is the one that shows it best.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

SHOWN: Final = {
    1: "test_cluster_d01_a_raised_minimum_counts_with_the_row_it_came_in",
    2: "test_cluster_d02_who_is_only_proposed_to_leave_holds_the_high_watermark",
    3: "test_cluster_d03_a_candidate_of_unknown_outcome_holds_the_high_watermark",
    4: "test_cluster_d04_a_fetch_of_a_process_that_is_gone_says_nothing",
    5: "test_cluster_d05_a_proposal_names_the_life_that_reported",
    6: "test_cluster_d6_a_leader_that_lost_power_does_not_lead_again_with_os_flush",
    7: "test_cluster_d07_a_lowered_minimum_lets_the_dead_go_at_once",
    8: "test_cluster_d08_a_new_controller_gives_every_session_its_full_time_then_ends_it",
    9: "test_cluster_d09_a_stall_of_the_own_loop_extends_every_session",
    10: "test_cluster_d10_a_controller_cut_off_from_all_others_ends_no_session_of_theirs",
    11: "test_cluster_d11_of_two_candidates_one_decides_and_stays",
    12: "test_cluster_d12_a_claim_that_comes_true_late_makes_its_author_controller",
    13: "test_cluster_d13_a_stopped_controller_decides_nothing_when_it_goes_on",
    14: "test_cluster_d14_an_outage_of_the_store_makes_nobody_controller",
    15: "test_cluster_d15_a_topic_whose_creation_landed_unseen_is_not_created_twice",
    16: "test_cluster_d16_a_topic_whose_first_leader_dies_before_its_root_is_served_by_the_next",
    17: "test_cluster_d17_what_comes_late_or_again_changes_nothing",
    18: "test_cluster_d18_a_leader_cut_off_from_the_controller_acknowledges_nothing_more",
    19: "test_cluster_d19_a_minority_at_the_floor_goes_on_and_nobody_else_leads",
    20: "test_cluster_d20_a_leader_cut_from_the_bucket_for_a_minute_hands_over",
    21: "test_cluster_d21_a_leader_that_comes_back_does_not_finish_what_it_began_before",
    22: "test_cluster_d22_epochs_without_a_record_part_logs_neither_unseen_nor_for_ever",
    23: "test_cluster_d23_who_follows_the_same_leader_again_asks_where_they_part",
    24: "test_cluster_d24_nothing_is_shown_before_the_first_answer_without_divergence",
    25: "test_cluster_d25_what_was_shown_is_not_cut",
    26: "test_cluster_d26_a_slice_taken_before_a_cut_never_shows_what_came_after_it",
    27: "test_cluster_d27_the_end_is_not_told_before_the_start_of_the_epoch_is_committed",
    28: "test_cluster_d28_a_follower_asks_for_no_reservation",
    29: "test_cluster_d29_a_reservation_stands_while_others_are_assigned_the_partition",
    30: "test_cluster_d30_a_new_leader_appends_without_asking_the_bucket",
    31: "test_cluster_d31_it_begins_no_earlier_than_the_bucket_ends",
    32: "test_cluster_d32_who_keeps_most_begins",
    33: "test_cluster_d33_a_copy_keeps_what_only_an_unverified_object_holds",
    34: "test_cluster_d34_an_object_that_is_not_whole_begins_no_log",
    35: "test_cluster_d35_a_bucket_that_is_away_ends_no_copying",
    36: "test_cluster_d36_a_deletion_is_answered_when_whoever_may_lead_next_knows_it",
    37: "test_cluster_d37_a_copy_that_begins_at_the_verified_end_starts_where_its_leader_s_log_does",
    38: "test_cluster_d38_a_log_that_failed_leads_nothing",
    39: "test_cluster_d39_a_leader_with_a_full_disk_hands_over_and_is_fit_again_with_room",
    40: "test_cluster_d40_a_live_session_is_not_given_to_another_process",
    41: "test_cluster_d41_a_replaced_disk_leads_nothing_it_does_not_have",
    42: "test_cluster_d42_a_quick_restart_ends_the_leadership_that_was",
    43: "test_cluster_d43_a_stray_is_what_the_image_gives_to_others_or_does_not_name",
    44: "test_cluster_d44_a_topic_made_again_while_a_broker_was_down_finds_its_place_free",
    45: "test_cluster_d45_an_append_of_an_older_epoch_confirms_nothing",
    46: "test_cluster_d46_a_new_coordinator_loads_its_groups_though_the_bucket_holds_nothing_it_can_read",
    47: "test_cluster_d47_no_broker_epoch_is_given_twice",
    48: "test_cluster_d48_a_stop_does_not_wait_for_a_store_that_is_away",
    49: "test_cluster_d49_all_restart_and_nothing_is_unclean",
    50: "test_cluster_d50_every_other_replica_is_waited_for",
    51: "test_cluster_d51_a_commit_that_does_not_fit_the_root_is_two_puts",
    52: "test_cluster_d52_a_reader_that_saw_the_root_before_a_fold_still_gets_an_image",
    53: "test_cluster_d53_each_kind_of_root_counts_its_formats_by_itself",
    57: "test_cluster_d57_a_client_that_asks_as_a_broker_is_refused",
    58: "test_cluster_d58_a_port_that_is_taken_is_named_before_anything_starts",
    59: "test_cluster_d59_brokers_on_one_disk_answer_for_their_share_each",
    60: "test_cluster_d60_a_jump_closes_before_the_next_answer",
    61: "test_cluster_d61_a_store_that_takes_one_write_a_second_takes_every_change",
    62: "test_cluster_d62_a_leader_that_was_moved_away_proposes_and_acknowledges_nothing_more",
    63: "test_cluster_d63_who_hears_and_is_not_heard_leaves_by_lag",
    64: "test_cluster_d64_a_controller_that_is_killed_is_replaced_within_its_lease",
    65: "test_cluster_d65_a_tail_is_durable_before_the_first_question",
    66: "test_cluster_d66_who_followed_in_an_earlier_session_asks_where_the_log_starts",
    67: "test_cluster_d67_a_joiner_goes_by_what_its_leader_said_last",
    68: "test_cluster_d68_a_dead_incarnation_is_neither_counted_nor_proposed",
    69: "test_cluster_d69_a_dead_candidate_does_not_freeze_the_high_watermark",
    70: "test_cluster_d70_a_log_moved_away_is_told_and_copied_anew",
    71: "test_cluster_d71_a_move_waits_for_all_of_its_target",
    72: "test_cluster_d72_a_start_that_is_cut_off_is_done_again",
    73: "test_cluster_d73_who_saw_the_last_epoch_keeps_its_tail",
    74: "test_cluster_d74_a_reservation_of_an_earlier_leadership_allows_nothing",
    75: "test_cluster_d75_a_registration_is_conditional_on_the_last_broker_epoch",
    76: "test_cluster_d76_what_was_begun_before_a_suspension_is_not_sent_again_after_it",
    77: "test_cluster_d77_an_older_image_that_is_put_back_deletes_nothing",
    78: "test_cluster_d78_sessions_that_expire_one_by_one_are_counted_together",
    79: "test_cluster_d79_where_everything_cold_expired_a_log_begins_with_nothing_known",
    81: "test_cluster_d81_who_left_and_came_back_is_not_taken_for_who_he_was",
    82: "test_cluster_d82_the_survivor_of_three_goes_on_once_nobody_else_claimed",
}

LATER: Final = {
    80: "no fork of a topic yet: no producer's state has anywhere to cross to",
    83: "no directory renews its id: one that lost power under `os` names its logs as lost, under the id it has (D6)",
}
"""Scenarios that cannot happen in what is built, and why."""


def scenarios() -> dict[int, str]:
    """Each of the design's page, with what goes wrong in it."""
    page = (ROOT / "docs/design/cluster.md").read_text(encoding="utf-8")
    return {int(number): what for number, what in re.findall(r"^\| D(\d+) \| ([^|]*) \|", page, re.MULTILINE)}


def written() -> Iterator[tuple[int, str]]:
    """Every test that is named after a scenario, as pytest takes it."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_cluster_d\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            shown = re.match(r"test_cluster((?:_d\d+)+)_", name)
            assert shown is not None, f"{path}: {name} names no scenario"
            for number in re.findall(r"\d+", shown.group(1)):
                yield int(number), f"{path.relative_to(ROOT)}::{name}"


def main() -> None:
    found: dict[int, list[str]] = {}
    for number, test in written():
        found.setdefault(number, []).append(test)
    for number, what in scenarios().items():
        print(f"D{number}  {what}")
        for test in found.get(number) or [LATER.get(number, "nothing")]:
            print(f"      {test}")


if __name__ == "__main__":
    main()
