"""Every trouble that people have with checkpoints has its test here.

The rows are those of the project's survey of issue trackers and forums; each names what a user
sees and the tests that show what solo does instead. A row without a test, and a test that is
gone, are failures.
"""

from __future__ import annotations

import ast
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent

ROWS: list[tuple[int, str, list[str]]] = [
    (1, "deserialize on a CUDA device, and there is none",
     ["troubles::test_a_file_saved_on_a_gpu_loads_on_a_machine_without",
      "troubles::test_asking_for_cuda_without_one_says_why"]),
    (2, "map_location ignored: written by pickle.dump",
     ["troubles::test_a_plain_pickle_of_tensors_is_explained"]),
    (3, "CUDA device 3, and device_count() is 1",
     ["troubles::test_saved_as_location_remaps_what_is_not_here",
      "place::test_cuda_under_torchrun_is_the_ranks_own"]),
    (4, "'cuda' went to cuda:0, not to the current device",
     ["place::test_cuda_under_torchrun_is_the_ranks_own"]),
    (5, "a context on GPU 0 that nobody asked for",
     ["troubles::test_loading_touches_no_device_outside_the_plan"]),
    (6, "mistyped devices", ["troubles::test_a_mistyped_device_is_told_before_reading",
                             "troubles::test_an_int_is_a_cuda_index"]),
    (7, "every rank loads to cuda:0",
     ["place::test_cuda_under_torchrun_is_the_ranks_own",
      "remote::test_ranks_that_load_to_one_gpu_are_warned"]),
    (8, "model and state_dict both in memory",
     ["into::test_loading_into_a_model_needs_no_second_copy"]),
    (9, "a module name in map_location is silently ignored",
     ["troubles::test_a_module_name_in_map_location_is_not_ignored"]),
    (10, "failed finding central directory",
     ["troubles::test_a_truncated_file_says_so_whatever_its_size"]),
    (11, "another error for each size of a cut file; empty; zeros",
     ["troubles::test_a_truncated_file_says_so_whatever_its_size",
      "troubles::test_what_is_no_checkpoint_is_named",
      "breaks::test_a_download_whose_end_was_only_reserved_is_told"]),
    (12, "invalid header or archive is corrupted",
     ["troubles::test_a_flipped_byte_names_the_tensors_it_is_in"]),
    (13, "read while it is being written",
     ["troubles::test_a_file_that_changes_while_it_is_read_is_told",
      "stable::test_a_file_that_grows_is_loaded_once_it_is_whole",
      "breaks::test_kill_9_in_the_middle_of_a_save_leaves_the_old_file"]),
    (14, "storage has wrong size: expected -466",
     ["troubles::test_several_writers_at_once_are_suspected"]),
    (15, "UnpicklingError, and the advice to set weights_only=False",
     ["troubles::test_all_unsafe_names_are_listed_and_harmless_ones_marked",
      "troubles::test_numpy_numbers_are_called_harmless",
      "equal::test_tensors_only_keeps_strangers_as_placeholders",
      "equal::test_names_that_a_caller_allows_are_used"]),
    (16, "pickle protocols 3 to 5 refused", ["equal::test_newer_pickle_protocols_are_read"]),
    (17, "Unsupported operand: not a pickle at all",
     ["troubles::test_what_is_no_checkpoint_is_named"]),
    (18, "invalid load key, 'v'", ["troubles::test_an_lfs_pointer_tells_the_real_size"]),
    (19, "wrong extension", ["troubles::test_the_content_decides_not_the_suffix"]),
    (20, "legacy .tar refused", ["troubles::test_a_tar_is_named_and_not_unpacked"]),
    (21, "mmap of a legacy file", ["storage::test_mmap_of_a_legacy_file_copies_and_says_so"]),
    (22, "pathlib.Path refused", ["storage::test_every_kind_of_path_is_taken"]),
    (23, "TorchScript given to load",
     ["troubles::test_torchscript_gives_its_tensors_and_runs_nothing",
      "script::test_a_module_is_run_by_explicit_word"]),
    (24, "TorchScript constants left on the other device",
     ["script::test_map_location_and_device_map_reach_constants",
      "script::test_devices_that_are_literals_of_the_code_are_warned_of"]),
    (25, "mmap on NFS, Lustre, FUSE crawls or hangs",
     ["storage::test_a_file_on_network_storage_is_never_mapped"]),
    (26, "mmap: No such device; a directory",
     ["storage::test_a_file_system_that_cannot_map_is_read",
      "into::test_a_directory_prefers_its_index_and_an_empty_one_is_told"]),
    (27, "SIGBUS", ["troubles::test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_signal",
                    "storage::test_storage_that_goes_on_failing_is_an_error_with_path_and_place"]),
    (28, "ESTALE", ["storage::test_network_storage_that_fails_for_a_moment_is_asked_again"]),
    (29, "unable to mmap: Cannot allocate memory", ["storage::test_a_mapping_reserves_no_memory"]),
    (30, "saving over the loaded file corrupts it",
     ["troubles::test_saving_over_a_mapped_file_leaves_the_mapping_whole"]),
    (31, "twice the memory where GPU and host share it",
     ["storage::test_a_gpu_that_shares_the_hosts_memory_is_read_past_the_page_cache"]),
    (32, "how do I really load it?",
     ["storage::test_materialize_brings_mapped_tensors_into_memory"]),
    (33, "memory is not given back", ["troubles::test_memory_goes_back_when_tensors_are_gone"]),
    (34, "twice the model's memory at the peak",
     ["into::test_loading_into_a_model_needs_no_second_copy"]),
    (35, "a saved slice drags its whole storage",
     ["troubles::test_a_saved_slice_that_drags_its_storage_is_shown_and_can_be_compacted"]),
    (36, "tied tensors refused or duplicated",
     ["into::test_tied_tensors_are_stored_once_and_come_back_tied",
      "place::test_tied_tensors_stay_tied"]),
    (37, "torch has no attribute float8_e4m3fn",
     ["troubles::test_a_dtype_that_this_torch_lacks_is_an_error_of_that_tensor_alone"]),
    (38, "new dtypes crash, or are silently another",
     ["troubles::test_an_unknown_dtype_names_the_tensor_and_is_never_guessed"]),
    (39, "big-endian files are garbage", ["equal::test_files_of_big_endian_machines_are_swapped"]),
    (40, "Cannot copy out of meta tensor",
     ["into::test_a_meta_model_is_made_real_and_stays_tied",
      "dcp::test_a_meta_model_is_made_from_a_directory_on_several_devices"]),
    (41, "a wrapper subclass keeps the saved device",
     ["troubles::test_a_wrapper_subclass_does_not_keep_the_saved_device"]),
    (42, "optimizer state on the wrong device",
     ["optimizer::test_state_goes_where_its_parameter_goes",
      "dcp::test_a_device_map_reaches_model_and_optimizer_of_a_directory"]),
    (43, "module. and _orig_mod. prefixes", ["into::test_prefixes_of_wrappers_are_taken_off",
                                             "into::test_a_wrapped_model_takes_a_plain_file"]),
    (44, "the index names a missing shard",
     ["into::test_missing_shards_are_all_named_before_reading",
      "into::test_an_index_and_its_shards_must_agree_in_both_directions"]),
    (45, "device_map leaves parameters out, or a key matches nothing",
     ["place::test_unused_keys_and_uncovered_names_are_told_at_once",
      "place::test_the_longest_prefix_wins_and_the_empty_one_is_the_rest"]),
    (46, "where would it all go?",
     ["remote::test_plan_prints_bytes_by_device_and_loads_nothing",
      "place::test_auto_fills_devices_in_turn_and_keeps_blocks_whole"]),
    (47, "Repo id must be in the form",
     ["troubles::test_a_missing_path_shows_what_was_tried_and_what_is_near"]),
    (48, "dangling links of a hub's cache; index paths that climb",
     ["troubles::test_a_dangling_link_names_its_target_and_links_are_followed",
      "hostile::test_an_index_cannot_leave_its_directory"]),
    (49, "Python 2 pickles", ["troubles::test_python_2_strings_are_read"]),
    (50, "S3 slow, twice the memory", ["remote::test_s3_is_read_by_ranges",
                                       "remote::test_large_objects_come_in_parallel_ranges",
                                       "storage::test_http_is_read_by_ranges"]),
    (51, "ranks resume from different files",
     ["remote::test_a_rank_with_another_file_is_named_before_data_is_read",
      "dcp::test_ranks_agree_on_a_directory_and_name_another"]),
    (52, "a whole tensor is read for a slice",
     ["dcp::test_a_distributed_tensor_reads_its_own_rows"]),
    (53, "the device is the global rank; twice the memory of a GPU",
     ["place::test_cuda_under_torchrun_is_the_ranks_own",
      "place::test_the_staged_way_gives_the_same_bytes"]),
    (54, "direct copies to a GPU are slow", ["place::test_the_staged_way_gives_the_same_bytes"]),
    (55, "metadata drags megabytes of read-ahead",
     ["troubles::test_reading_only_metadata_reads_little"]),
    (56, "a header of 132 MB refused",
     ["troubles::test_a_header_beyond_the_limit_is_told_with_its_size"]),
    (57, "trailing bytes: one loader accepts, one refuses",
     ["troubles::test_trailing_bytes_are_refused_unless_allowed"]),
    (58, "files without checksums fail elsewhere",
     ["equal::test_a_file_without_checksums_is_read"]),
    (59, "a fast way of the kernel that containers forbid",
     ["storage::test_a_file_system_without_direct_reads_is_read_all_the_same"]),
    (60, "several models on one host",
     ["host::test_what_another_process_promised_itself_is_not_free",
      "host::test_plan_names_who_else_holds_memory"]),
]  # fmt: skip


def functions_in(name: str) -> set[str]:
    tree = ast.parse((HERE / f"test_load_{name}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_row_is_missing() -> None:
    assert [number for number, _, _ in ROWS] == list(range(1, 61))


@pytest.mark.parametrize(("number", "trouble", "tests"), ROWS, ids=[str(r[0]) for r in ROWS])
def test_a_trouble_has_its_tests(number: int, trouble: str, tests: list[str]) -> None:
    assert trouble and tests, number
    for test in tests:
        file, _, name = test.partition("::")
        assert name in functions_in(file), f"{number} ({trouble}): {test} is gone"
