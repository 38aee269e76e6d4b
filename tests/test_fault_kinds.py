"""What speculative decoders have got wrong, by kind, and the tests that hold each kind here.

The kinds come from public reports, some of which are named as repository#number. A kind has tests, as names
of functions in files below this folder, or a reason why it cannot occur.
"""

import ast
import functools
from pathlib import Path

import pytest

GROUPS = {
    "wrong distribution": {
        "a draft at another temperature, or a greedy one (huggingface/transformers#32867)": {
            "decoding/test_law.py": [
                "test_model_draft_keeps_the_law",
                "test_rows_keep_their_own_law_under_a_draft_with_other_settings",
            ],
        },
        "a token drawn in another precision than the law in the ratio": {
            "decoding/test_law.py": ["test_models_that_answer_in_half_precision_keep_the_law"],
            "sampling/test_pipeline.py": ["test_a_token_is_drawn_from_the_law_that_is_returned"],
        },
        "likeliest tokens proposed, probabilities in the ratio (jaymody/speculative-sampling#3)": {
            "verify/test_rules.py": [
                "test_a_point_mass_may_come_from_anywhere",
                "test_a_point_mass_is_accepted_with_its_probability_and_replaced_by_another_token",
            ],
            "decoding/test_law.py": ["test_other_drafts_keep_the_law"],
            "testing/test_faults.py": ["test_sampled_text_has_the_targets_law_whatever_is_proposed"],
        },
        "no residual where the laws are equal, zeros in one of them, nothing in common": {
            "verify/test_rules.py": [
                "test_emitted_tokens_have_the_targets_law",
                "test_a_rejection_that_only_rounding_can_cause_falls_back_to_the_target",
            ],
            "decoding/test_law.py": ["test_a_self_draft_is_always_accepted"],
        },
        "draft and target filtered differently": {
            "decoding/test_law.py": ["test_rows_keep_their_own_law_under_a_draft_with_other_settings"],
        },
        "a law computed, and then the likeliest token taken": {
            "decoding/test_law.py": ["test_model_draft_keeps_the_law"],
        },
        "a draft's law that the rule is not told, and accepts less (vllm-project/vllm#40149)": {
            "decoding/test_law.py": ["test_acceptance_is_what_the_laws_have_in_common"],
            "certify/test_certify.py": ["test_a_rule_that_accepts_too_little_is_reported"],
        },
        "a rejection that takes effect a round late": {
            "decoding/test_law.py": ["test_every_rule_keeps_the_law_of_longer_texts"],
        },
        "proposal, accept test and replacement from one random number (vllm-project/vllm#47386)": {
            "sampling/test_noise.py": [
                "test_no_number_is_used_twice",
                "test_uniforms_of_all_accept_tests_of_a_seed_are_uniform_together",
            ],
            "exactness/test_mutants.py": ["test_every_mutant_is_caught_at_every_seed"],
            "certify/test_certify.py": ["test_noise_shared_by_draft_and_replacement_is_reported"],
        },
        "logits of draft or target that are not finite": {
            "decoding/test_law.py": [
                "test_a_draft_that_breaks_down_midway_keeps_the_law",
                "test_a_target_that_breaks_down_midway_keeps_the_law_of_what_came_before",
                "test_a_token_behind_which_the_target_breaks_down_keeps_its_probability",
            ],
            "drafts/test_model.py": ["test_a_recurrent_draft_heals_after_a_failure"],
            "testing/test_faults.py": ["test_failing_slots_are_not_live_and_those_before_them_are"],
        },
        "a test of the law that no broken rule would fail": {
            "verify/test_rules.py": ["test_the_enumeration_rejects_broken_rules"],
            "exactness/test_mutants.py": ["test_every_mutant_is_caught_at_every_seed"],
        },
        "the best of several candidates for one position": "One candidate a position: no trees.",
    },
    "greedy mismatch and dtype": {
        "speculative text differs from plain text in float32": {
            "decoding/test_greedy.py": [
                "test_speculative_text_equals_plain_text",
                "test_every_pattern_of_acceptance_gives_the_same_text",
            ],
            "testing/test_faults.py": ["test_greedy_text_is_the_targets_whatever_is_proposed"],
            "decoding/test_real_model.py": ["test_greedy_text_of_real_prompts"],
            "certify/test_certify.py": ["test_greedy_rows_that_keep_everything_are_reported"],
        },
        "it differs in bfloat16 at equal shapes (vllm-project/vllm#54928)": {
            "decoding/test_greedy.py": ["test_bfloat16_text_is_that_of_plain_decoding_at_equal_shapes"],
        },
        "it depends on how many tokens a round scores (ggml-org/llama.cpp#25618)": {
            "decoding/test_greedy.py": ["test_float32_text_does_not_depend_on_the_compiled_width"],
            "decoding/test_verify_widths.py": ["test_everything_but_the_time_is_as_with_one_width"],
            "decoding/test_real_model.py": ["test_greedy_text_of_many_prompts"],
            "models/test_layers.py": ["test_linear_rows_have_the_same_bits_for_any_number_of_rows"],
            "text/test_comparison.py": ["test_rounds_of_one_width_tell_rounding_from_a_fault"],
        },
        "the way the prompt is fed flips the first token": {
            "models/test_goldens.py": ["test_smollm2_generates_the_greedy_tokens"],
            "decoding/test_capacity.py": ["test_rows_may_fill_their_capacity_to_the_last_token"],
        },
        "a draft that is the target is not always accepted": {
            "decoding/test_greedy.py": ["test_acceptance_of_a_self_draft_does_not_drift"],
        },
        "greedy rows decided by a ratio of probabilities": {
            "decoding/test_greedy.py": ["test_greedy_and_sampled_rows_share_a_batch"],
        },
    },
    "ends": {
        "an EOS within a block, as replacement or as bonus token (huggingface/transformers#47912)": {
            "decoding/test_stop.py": [
                "test_eos_at_every_place",
                "test_ends_in_the_unaccepted_rest_of_a_block_do_not_count",
                "test_what_the_model_makes_of_the_text_after_an_end_does_not_matter",
            ],
        },
        "no EOS at all (huggingface/transformers#46790)": {
            "decoding/test_stop.py": ["test_empty_lists_ask_for_nothing"],
            "models/test_checkpoint.py": ["test_a_model_without_eos"],
        },
        "several EOS ids, or one twice": {
            "decoding/test_stop.py": [
                "test_any_of_several_eos_ids_ends_a_row",
                "test_eos_ids_may_be_one_number_or_an_array",
                "test_eos_ids_may_be_listed_twice_beside_one_of_the_prompt",
            ],
        },
        "an EOS or a stop sequence in the prompt": {
            "decoding/test_stop.py": [
                "test_eos_in_the_prompt_is_ignored",
                "test_a_stop_sequence_never_begins_in_the_prompt",
            ],
        },
        "a stop sequence across rounds, or together with an EOS": {
            "decoding/test_stop.py": [
                "test_last_token_of_a_stop_sequence_at_every_place",
                "test_the_earliest_end_wins",
            ],
        },
        "a length checked before the end: another reason, tokens too many": {
            "decoding/test_stop.py": ["test_on_one_token_eos_beats_stop_beats_length"],
        },
        "text that is cut, and ids and log-probabilities that are not (vllm-project/vllm#47616)": {
            "decoding/test_logprobs.py": ["test_logprobs_after_the_end_are_zero"],
            "text/test_generation.py": [
                "test_a_stop_text_ends_a_generation_that_the_device_would_go_on_with"
            ],
        },
        "tokens behind an end that are streamed": {
            "decoding/test_decoder.py": ["test_stream_yields_every_token_once"],
            "text/test_streaming.py": ["test_a_stream_ends_at_a_stop_text_within_tokens"],
        },
        "the end of one row taken for that of another": {
            "decoding/test_stop.py": ["test_ends_of_one_row_are_no_ends_of_another"],
        },
    },
    "length and context limits": {
        "more tokens than were asked for (huggingface/transformers#46993)": {
            "decoding/test_stop.py": [
                "test_no_row_exceeds_its_budget",
                "test_rows_have_budgets_of_their_own",
                "test_a_block_that_is_longer_than_the_budget_is_cut",
            ],
        },
        "a draft whose context is shorter than the target's (vllm-project/vllm#5342)": {
            "decoding/test_greedy.py": ["test_a_draft_at_the_end_of_its_context_stops_proposing"],
        },
        "a block that reaches beyond the buffer: a crash, or a clamped write onto valid entries": {
            "decoding/test_capacity.py": [
                "test_rows_may_fill_their_capacity_to_the_last_token",
                "test_slots_beyond_the_valid_length_are_never_read",
                "test_poison_in_a_valid_slot_is_noticed",
            ],
            "decoding/test_verify_widths.py": ["test_a_conversation_at_the_edge_of_its_capacity"],
        },
        "what cannot fit, found out late": {
            "decoding/test_arguments.py": [
                "test_prompts_that_make_no_sense",
                "test_a_text_longer_than_the_targets_context_is_refused",
                "test_text_longer_than_the_targets_context_ends_a_traced_row",
            ],
            "decoding/test_decoder.py": ["test_extending_beyond_the_capacity_is_refused"],
        },
        "a text that crosses a sliding window": {
            "models/test_checkpoint.py": ["test_a_sliding_window_of_qwen2_in_use_is_refused"],
        },
        "a shift of the context": "Nothing is shifted out: a row ends where its capacity does.",
    },
    "batches": {
        "one offset for all rows (Blaizzy/mlx-vlm#1144)": {
            "decoding/test_greedy.py": ["test_every_pattern_of_acceptance_gives_the_same_text"],
            "decoding/test_rollback.py": ["test_caches_after_nothing_a_part_and_all_of_a_draft"],
            "models/test_attention.py": ["test_write_puts_each_row_at_its_own_offset"],
            "testing/test_check_model.py": ["test_shared_offset_is_caught"],
        },
        "prompts of several lengths: padding that is read": {
            "decoding/test_greedy.py": [
                "test_a_row_alone_in_a_batch_and_at_another_place_gives_the_same_tokens"
            ],
            "models/test_attention.py": ["test_junk_in_masked_slots_changes_no_bit"],
        },
        "a finished row beside running ones": {
            "decoding/test_stop.py": ["test_rows_have_budgets_of_their_own"],
            "decoding/test_stats.py": ["test_statistics_are_what_a_recount_of_every_round_says"],
        },
        "rows of different settings in one batch (vllm-project/vllm#9441)": {
            "decoding/test_greedy.py": ["test_greedy_and_sampled_rows_share_a_batch"],
            "decoding/test_law.py": ["test_rows_keep_their_own_law_under_a_draft_with_other_settings"],
        },
        "a row that depends on its place or its neighbours": {
            "decoding/test_greedy.py": [
                "test_a_row_alone_in_a_batch_and_at_another_place_gives_the_same_tokens",
                "test_equal_prompts_differ_by_seed_and_agree_with_equal_seeds",
            ],
        },
        "one draft length for all rows": {
            "drafts/test_ngram.py": [
                "test_no_more_than_is_of_use",
                "test_a_longer_match_proposes_more_where_short_proposals_are_cheap",
            ],
        },
        "padding on the left": "Prompts are padded on the right.",
    },
    "rollback of caches": {
        "a cache that is reset, or cut by too many or too few after a rejection (lablup/mlxcel#1002)": {
            "decoding/test_rollback.py": ["test_caches_after_nothing_a_part_and_all_of_a_draft"],
            "testing/test_caches.py": ["test_caches_hold_the_text_after_every_round"],
            "decoding/test_greedy.py": ["test_debug_names_the_row_and_the_invariant"],
        },
        "a hole in the draft's cache after full acceptance, a bonus token that gets lost": {
            "decoding/test_rollback.py": ["test_caches_after_nothing_a_part_and_all_of_a_draft"],
            "decoding/test_greedy.py": ["test_acceptance_of_a_self_draft_does_not_drift"],
            "certify/test_certify.py": ["test_a_hole_in_the_drafts_cache_is_reported"],
        },
        "rejected entries that are read again": {
            "decoding/test_capacity.py": ["test_slots_beyond_the_valid_length_are_never_read"],
        },
        "a recurrent cache, which a length cannot roll back (ml-explore/mlx-lm#1446)": {
            "drafts/test_model.py": ["test_a_recurrent_draft_follows_the_text"],
            "testing/test_check_model.py": ["test_breach_is_named"],
            "decoding/test_verify_widths.py": [
                "test_a_target_whose_pending_cache_depends_on_the_width_is_refused"
            ],
        },
        "a window narrower than what is rolled back": {
            "models/test_checkpoint.py": ["test_a_sliding_window_of_qwen2_in_use_is_refused"],
        },
        "a cache that is copied or grows while it is cut": {
            "models/test_transformer.py": ["test_a_step_in_a_loop_copies_no_cache"],
            "decoding/test_verify_widths.py": ["test_switching_widths_copies_no_cache"],
        },
        "a run time that explodes with the length": {
            "models/test_attention.py": ["test_blocks_beyond_the_longest_row_are_not_visited"],
        },
        "a copy of the cache somewhere else that keeps what was rejected": "Caches live in the state alone.",
    },
    "penalties and stateful processors": {
        "the last token of a block counted alone, rejected ones too, or accepted ones twice": {
            "decoding/test_processors.py": ["test_states_are_those_of_the_text_after_every_round"],
            "sampling/test_pipeline.py": ["test_advancing_by_a_part_of_a_block_equals_a_recount"],
        },
        "a penalty that is silently ignored (NVIDIA/TensorRT-LLM#17701)": {
            "decoding/test_processors.py": [
                "test_greedy_text_is_that_of_a_plain_loop",
                "test_every_processor_changes_the_text",
            ],
            "sampling/test_params.py": ["test_every_setting_reaches_the_rows"],
        },
        "a token that comes twice within one block": {
            "sampling/test_pipeline.py": [
                "test_a_block_is_processed_as_if_token_by_token",
                "test_a_position_does_not_see_the_draft_from_itself_on",
            ],
        },
        "penalties that bend the law": {
            "decoding/test_law.py": ["test_every_rule_keeps_the_law_of_longer_texts"],
        },
        "a processor that rows share": {
            "sampling/test_processors.py": ["test_a_callers_processor_sees_each_row_with_its_own_state"],
            "decoding/test_processors.py": ["test_a_callers_processor_is_followed"],
        },
    },
    "filters and bias": {
        "a filter or a bias for the bonus token only (vllm-project/vllm#42744)": {
            "decoding/test_logprobs.py": [
                "test_every_token_is_one_that_the_filters_allow_whichever_part_it_played",
                "test_logprobs_equal_the_law_whichever_part_a_token_played",
            ],
            "decoding/test_law.py": ["test_model_draft_keeps_the_law"],
        },
        "a filter that one mode lacks": {
            "decoding/test_law.py": ["test_other_drafts_keep_the_law"],
            "decoding/test_decoder.py": ["test_one_compile_serves_every_value"],
        },
        "filters in another order": {
            "sampling/test_pipeline.py": ["test_temperature_and_filters_follow_one_another"],
            "sampling/test_processors.py": ["test_laws_equal_those_of_transformers"],
        },
        "proposals drawn with a filter, and q without it": {
            "sampling/test_pipeline.py": ["test_a_token_is_drawn_from_the_law_that_is_returned"],
        },
        "the filter of one row used for another": {
            "sampling/test_pipeline.py": ["test_neighbours_do_not_change_a_law"],
        },
    },
    "vocabularies": {
        "one tokenizer, padded to two widths (vllm-project/vllm#10913)": {
            "decoding/test_law.py": ["test_acceptance_is_what_the_laws_have_in_common"],
            "decoding/test_greedy.py": ["test_padded_vocabularies_may_differ"],
            "decoding/test_arguments.py": ["test_a_draft_with_another_padded_width_is_accepted"],
        },
        "ids that mean something else (sgl-project/sglang#23838)": {
            "decoding/test_arguments.py": ["test_a_draft_with_another_vocabulary_is_refused"],
            "models/test_vocabulary.py": ["test_check_compatible_names_the_first_id_and_both_strings"],
            "test_cli.py": ["test_a_draft_that_cannot_be_used"],
        },
        "tokens of the target that the draft can never propose": {
            "decoding/test_greedy.py": ["test_padded_vocabularies_may_differ"],
        },
        "hidden sizes that do not fit": "No draft reads the target's hidden states.",
        "text that is encoded anew for the draft": "Draft and target share ids; nothing is encoded.",
    },
    "seeds and determinism": {
        "a seed that is ignored (vllm-project/vllm#6038)": {
            "decoding/test_greedy.py": ["test_equal_prompts_differ_by_seed_and_agree_with_equal_seeds"],
            "decoding/test_coupled.py": ["test_but_on_the_seed"],
            "test_cli.py": ["test_equal_seeds_give_equal_samples"],
        },
        "one stream of numbers for all rows": {
            "sampling/test_noise.py": ["test_no_number_is_used_twice"],
            "sampling/test_params.py": ["test_one_seed_means_seed_plus_row"],
        },
        "numbers that depend on the place in a batch": {
            "sampling/test_noise.py": [
                "test_a_row_of_a_batch_draws_what_it_draws_alone",
                "test_numbers_do_not_depend_on_the_default_generator",
            ],
            "decoding/test_coupled.py": ["test_nor_on_the_neighbours"],
        },
        "numbers that depend on when a neighbour finishes": {
            "decoding/test_logprobs.py": ["test_logprobs_after_the_end_are_zero"],
            "decoding/test_arguments.py": ["test_a_bad_traced_value_ends_its_row_and_no_other"],
        },
        "another text in the next run": {
            "decoding/test_decoder.py": ["test_rounds_in_pieces_equal_one_run"],
        },
    },
    "low acceptance": {
        "a draft that is the target, with equal filters, is rejected at times": {
            "decoding/test_law.py": ["test_a_self_draft_is_always_accepted"],
        },
        "acceptance below what the laws have in common": {
            "decoding/test_law.py": ["test_acceptance_is_what_the_laws_have_in_common"],
            "verify/test_rules.py": [
                "test_the_published_example",
                "test_block_never_accepts_less_than_token",
                "test_coupled_draws_match_as_often_as_the_formula_says",
            ],
        },
        "a cliff at one slot of the draft, or no loss with a worse draft": {
            "decoding/test_greedy.py": ["test_acceptance_falls_as_a_draft_gets_worse"],
        },
        "a metric of the confident proposals alone (ggml-org/llama.cpp#3919)": {
            "text/test_report.py": ["test_acceptance_counts_live_draft_tokens_at_each_position"],
            "decoding/test_stats.py": ["test_statistics_are_what_a_recount_of_every_round_says"],
        },
        "acceptance that decays with the length of the text": {
            "decoding/test_greedy.py": ["test_acceptance_of_a_self_draft_does_not_drift"],
            "decoding/test_real_model.py": ["test_a_context_of_4000_tokens_of_a_tiny_model"],
        },
        "settings of the target that overwrite the draft's": "A draft has a configuration of its own.",
        "hidden states from somewhere else, heads trained on other templates": "There are no trained heads.",
    },
    "slower than plain decoding": {
        "another program for another prompt, setting or pattern of acceptance": {
            "decoding/test_decoder.py": [
                "test_one_compile_serves_every_value",
                "test_compile_leaves_nothing_to_compile",
            ],
            "decoding/test_verify_widths.py": ["test_one_compile_serves_all_widths"],
            "sampling/test_automaton.py": ["test_another_table_of_the_same_size_compiles_nothing"],
        },
        "tokens that are scored for nothing": {
            "decoding/test_verify_widths.py": [
                "test_the_narrowest_width_that_holds_the_longest_proposal_is_scored"
            ],
        },
        "a comparison with a slow way of plain decoding": {
            "text/test_comparison.py": ["test_the_ratio_is_never_to_the_slower_plain_way"],
        },
        "times": "They are measured and not tested, by scripts/bench_step.py and specjax bench.",
        "a busy server, several devices": "There is no server, and programs run on one device.",
    },
    "memory": {
        "memory that grows from call to call": {
            "decoding/test_decoder.py": ["test_calls_leave_nothing_behind"],
            "certify/test_certify.py": ["test_what_is_right_passes_and_is_written_down"],
        },
        "buffers that grow faster than the draft": {
            "decoding/test_decoder.py": ["test_memory_of_a_round_grows_with_gamma_as_its_logits_do"],
            "sampling/test_pipeline.py": ["test_memory_does_not_hold_a_state_for_each_position"],
        },
        "hidden copies of caches": {
            "decoding/test_verify_widths.py": ["test_switching_widths_copies_no_cache"],
            "models/test_attention.py": ["test_write_in_a_loop_copies_no_cache"],
        },
        "a draft that is left out of the memory that is planned": "No memory is planned: sizes are fixed.",
    },
    "log-probabilities": {
        "zero, missing or of another law for accepted, replaced or bonus tokens (ggml-org/llama.cpp#27972)": {
            "decoding/test_logprobs.py": ["test_logprobs_equal_the_law_whichever_part_a_token_played"],
            "decoding/test_verify_widths.py": ["test_everything_but_the_time_is_as_with_one_width"],
        },
        "some for tokens behind the end": {
            "decoding/test_logprobs.py": ["test_logprobs_after_the_end_are_zero"],
        },
        "asked for and not returned": {
            "test_cli.py": ["test_log_probabilities_have_a_table"],
        },
    },
    "cancelled rows": {
        "a cancelled row that leaves proposals behind (vllm-project/vllm#28473)": {
            "decoding/test_decoder.py": ["test_a_cancelled_row_is_used_again"],
            "certify/test_certify.py": ["test_what_is_right_passes_and_is_written_down"],
        },
        "another text after an interruption": {
            "decoding/test_decoder.py": [
                "test_rounds_in_pieces_equal_one_run",
                "test_a_conversation_goes_on_where_it_stopped",
            ],
            "text/test_generation.py": ["test_ctrl_c_returns_what_was_committed"],
            "test_cli.py": ["test_ctrl_c_ends_a_run_with_its_report"],
        },
        "preemption": "Nothing is preempted: rows of a batch start together, and keep their slots.",
    },
    "grammars": {
        "proposals that the grammar forbids (NVIDIA/TensorRT-LLM#7878)": {
            "decoding/test_processors.py": ["test_states_are_those_of_the_text_after_every_round"],
            "sampling/test_automaton.py": ["test_greedy_text_is_that_of_plain_decoding"],
        },
        "a grammar whose state is not that of the text after a rejection (vllm-project/vllm#27969)": {
            "decoding/test_processors.py": ["test_states_are_those_of_the_text_after_every_round"],
        },
        "a mask asked for after the end (openvinotoolkit/openvino.genai#4081)": {
            "sampling/test_automaton.py": ["test_a_regular_expression_ends_with_eos"],
        },
        "output that gets stuck": {
            "sampling/test_automaton.py": [
                "test_no_text_is_led_into_a_dead_end",
                "test_a_state_without_a_way_on_ends_the_row_with_an_error",
            ],
        },
    },
    "metrics and parallelism": {
        "accepted tokens that are not counted, or counted twice (ggml-org/llama.cpp#25682)": {
            "decoding/test_stats.py": ["test_statistics_are_what_a_recount_of_every_round_says"],
            "decoding/test_stop.py": ["test_eos_at_every_place"],
        },
        "finished rows that go on counting": {
            "decoding/test_stats.py": ["test_statistics_are_what_a_recount_of_every_round_says"],
        },
        "no acceptance reported": {
            "text/test_report.py": ["test_a_table_has_a_line_for_each_prompt_and_one_for_all"],
        },
        "a stage of a pipeline without a draft": "Models are not cut into stages.",
    },
}


@functools.cache
def functions(file):
    """The names of a file's functions; none, where there is no such file."""
    path = Path(__file__).parent / file
    if not path.exists():
        return frozenset()
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def missing(group):
    """What a group names and does not exist, and its kinds with neither tests nor a reason."""
    for kind, held in group.items():
        names = [] if isinstance(held, str) else [(file, test) for file in held for test in held[file]]
        if not (names or (isinstance(held, str) and held)):
            yield kind
        for file, test in names:
            if not test.startswith("test_") or test not in functions(file):
                yield f"{file}::{test}"


@pytest.mark.parametrize("name", GROUPS)
def test_every_kind_has_its_tests_or_a_reason(name):
    assert GROUPS[name]
    assert list(missing(GROUPS[name])) == []


def test_what_does_not_exist_is_found():
    here = Path(__file__).name
    group = {
        "a file that is gone": {"decoding/test_gone.py": ["test_every_kind_has_its_tests_or_a_reason"]},
        "a test that is gone": {here: ["test_gone"]},
        "a function that is no test": {here: ["missing"]},
        "nothing": {},
        "no tests": {here: []},
        "no reason": "",
        "fine": {here: ["test_what_does_not_exist_is_found"]},
        "a reason": "It cannot occur.",
    }
    assert list(missing(group)) == [
        "decoding/test_gone.py::test_every_kind_has_its_tests_or_a_reason",
        f"{here}::test_gone",
        f"{here}::missing",
        "nothing",
        "no tests",
        "no reason",
    ]
