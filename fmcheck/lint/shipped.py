"""The needles of the rules that are on by default, with the contracts that are shipped.

Written by `python -m tests.shipped`; a test tells when that is due.
"""

#: Of the sources that these are made of; with others, they count for nothing.
STAMP = "9d0e3e30"
NEEDLES: tuple[tuple[tuple[bytes, ...], ...], ...] = (
    # FM101
    (
        (
            b"FutureMap",
            b"FutureRelayBuffers",
            b"RequestState",
            b"future_map",
            b"future_relay_buffers",
            b"request_state",
        ),
        (
            b"bonus_tokens_buf",
            b"draft_tokens",
            b"dsa_topk_indices_buf",
            b"hidden_states_buf",
            b"last_sampled_tokens",
            b"new_seq_lens",
            b"new_seq_lens_buf",
            b"output_tokens",
            b"output_tokens_buf",
            b"token_ids_buf",
            b"topk_index_buf",
            b"topk_p_buf",
            b"verified_id_buf",
        ),
    ),
    # FM102
    (
        (
            b"FutureMap",
            b"FutureRelayBuffers",
            b"RequestState",
            b"future_map",
            b"future_relay_buffers",
            b"request_state",
        ),
        (
            b"bonus_tokens_buf",
            b"draft_tokens",
            b"dsa_topk_indices_buf",
            b"hidden_states_buf",
            b"last_sampled_tokens",
            b"new_seq_lens",
            b"new_seq_lens_buf",
            b"output_tokens",
            b"output_tokens_buf",
            b"token_ids_buf",
            b"topk_index_buf",
            b"topk_p_buf",
            b"verified_id_buf",
        ),
    ),
    # FM104
    (
        (
            b"FutureMap",
            b"FutureRelayBuffers",
            b"RequestState",
            b"future_map",
            b"future_relay_buffers",
            b"request_state",
        ),
        (
            b"bonus_tokens_buf",
            b"draft_tokens",
            b"dsa_topk_indices_buf",
            b"hidden_states_buf",
            b"last_sampled_tokens",
            b"new_seq_lens",
            b"new_seq_lens_buf",
            b"output_tokens",
            b"output_tokens_buf",
            b"token_ids_buf",
            b"topk_index_buf",
            b"topk_p_buf",
            b"verified_id_buf",
        ),
    ),
    # FM105
    (
        (
            b"FutureMap",
            b"FutureRelayBuffers",
            b"RequestState",
            b"future_map",
            b"future_relay_buffers",
            b"request_state",
        ),
        (
            b"bonus_tokens_buf",
            b"draft_tokens",
            b"dsa_topk_indices_buf",
            b"hidden_states_buf",
            b"last_sampled_tokens",
            b"new_seq_lens",
            b"new_seq_lens_buf",
            b"output_tokens",
            b"output_tokens_buf",
            b"token_ids_buf",
            b"topk_index_buf",
            b"topk_p_buf",
            b"verified_id_buf",
        ),
    ),
    # FM106
    (
        (
            b"_resolve_spec_overlap_token_ids",
            b"_resolve_spec_overlap_tokens",
            b"_resolve_spec_v2_tokens",
            b"process_batch_result_decode",
        ),
    ),
    # FM201
    (
        (
            b"copy_(",
            b"zero_(",
            b"fill_(",
            b"req_pool_indices",
        ),
    ),
    # FM202
    (
        (
            b"_fill_value",
            b"slot_mapping",
            b"slot_mappings",
        ),
        (
            b"fill_",
            b"clamp",
        ),
    ),
    # FM203
    ((b"GraphSlot",),),
    # FM204
    (
        (
            b"copy_",
            b"copy",
        ),
        (
            b"zero_",
            b"fill_",
        ),
    ),
    # FM207
    (
        (
            b"slot_mapping",
            b"slot_mappings",
        ),
    ),
    # FM301
    (
        (b"cuda",),
        (
            b"tream",
            b"Event",
            b"synchronize",
        ),
    ),
    # FM302
    (
        (
            b'"cuda"',
            b"'cuda'",
            b".cuda(",
        ),
    ),
    # FM401
    (
        (
            b"stream(",
            b"StreamContext",
            b"stream_c",
            b"wait_event",
        ),
    ),
    # FM402
    (
        (
            b"record(",
            b"record_event(",
        ),
    ),
    # FM403
    (
        (
            b"non_blocking",
            b"synchronize_input_prep",
            b"copy_to_gpu",
        ),
        (
            b"pin_memory",
            b"synchronize_input_prep",
            b"copy_to_gpu",
        ),
    ),
    # FM404
    (
        (b"non_blocking",),
        (
            b"copy_",
            b"cpu",
        ),
    ),
    # FM405
    (
        (
            b"stream(",
            b"StreamContext",
            b"stream_c",
        ),
    ),
    # FM406
    (
        (b"default_stream",),
        (b"wait",),
    ),
    # FM407
    (
        (
            b"record(",
            b"record_event(",
        ),
    ),
    # FM408
    ((b"_apply_war_barrier",),),
    # FM502
    (
        (
            b"_compute_mrope_positions",
            b"_prepare_input_ids",
            b"_update_states",
            b"add_requests",
            b"copy_to_cpu",
            b"cumulate_penalty_output_tokens",
            b"execute_model",
            b"finish_requests",
            b"forward_batch_generation",
            b"init_new",
            b"prepare_attn",
            b"prepare_for_decode",
            b"prepare_inputs",
            b"resolve_forward_inputs",
            b"run_batch",
            b"sample",
            b"update_requests",
        ),
    ),
    # FM601
    (
        (b"_assert_async",),
        (b"compile",),
    ),
    # FM604
    (
        (b"compile",),
        (b"torch",),
    ),
    # FM701
    ((b"on_verify_complete",),),
    # FM702
    ((b"resolve_seq_lens_cpu",),),
)
