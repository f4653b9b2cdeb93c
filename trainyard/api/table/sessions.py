"""Operations of step sessions: their life, the eight verbs, and what these left."""

from __future__ import annotations

from trainyard.api.table.operation import Operation, Scope

READ, RUN, _ADMIN = Scope

SESSIONS: dict[str, Operation] = {
    "sessions create": Operation(
        "Open a step session: a model on a device that is driven call by call, without a data set.",
        "sessions.life:CreateSessionInput", "sessions.life:create_session", "sessions.lines:session_text", RUN,
        example="trainyard sessions create -p base_model=starter --wait",
        route="POST /api/v1/sessions", status=202, tenants=True,
        body="parameters", body_schema="trainyard.spec.job:SessionSpec",
    ),
    "sessions list": Operation(
        "The newest sessions, their states and how far they are.",
        "sessions.life:SessionsInput", "sessions.life:list_sessions", "sessions.lines:sessions_text", READ,
        route="GET /api/v1/sessions", tenants=True,
    ),
    "sessions show": Operation(
        "One session: state, step, the number of its next operation, and what is saved.",
        "sessions.life:SessionInput", "sessions.life:show_session", "sessions.lines:session_text", READ,
        route="GET /api/v1/sessions/{session}", tenants=True,
    ),
    "sessions heartbeat": Operation(
        "Keep an open session while its client computes: its idle time begins again.",
        "sessions.life:SessionInput", "sessions.life:touch_session", "sessions.lines:session_text", RUN,
        route="POST /api/v1/sessions/{session}/heartbeat", tenants=True,
    ),
    "sessions close": Operation(
        "End a session with a checkpoint; its device is free then.",
        "sessions.life:SessionInput", "sessions.life:close_session", "sessions.lines:session_text", RUN,
        route="POST /api/v1/sessions/{session}/close", tenants=True,
    ),
    "sessions resume": Operation(
        "Continue a session that has ended, failed or was killed, from its newest valid checkpoint.",
        "sessions.life:ResumeSessionInput", "sessions.life:resume_session", "sessions.lines:session_text", RUN,
        route="POST /api/v1/sessions/{session}/resume", status=202, tenants=True,
    ),
    "sessions forward": Operation(
        "Score a batch of rows and keep its graph for one backward.",
        "sessions.calls:ForwardInput", "sessions.calls:forward", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/forward", keeps_replies=True, tenants=True,
    ),
    "sessions backward": Operation(
        "Add the gradients of a forward, times a factor.",
        "sessions.calls:BackwardInput", "sessions.calls:backward", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/backward", keeps_replies=True, tenants=True,
    ),
    "sessions step": Operation(
        "Clip the gradients, update the weights and the schedule.",
        "sessions.calls:StepInput", "sessions.calls:step", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/step", keeps_replies=True, tenants=True,
    ),
    "sessions zero-grad": Operation(
        "Clear the gradients, and drop a graph that waits.",
        "sessions.calls:ZeroGradInput", "sessions.calls:zero_grad", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/zero_grad", keeps_replies=True, tenants=True,
    ),
    "sessions generate": Operation(
        "Complete prompts with the weights as they are: text, tokens, and the log-probability of each.",
        "sessions.calls:GenerateInput", "sessions.calls:generate", "sessions.lines:completions_text", RUN,
        route="POST /api/v1/sessions/{session}/generate", keeps_replies=True, tenants=True,
    ),
    "sessions logprobs": Operation(
        "The log-probability of each token of a text, of messages or of tokens.",
        "sessions.calls:LogprobsInput", "sessions.calls:logprobs", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/logprobs", keeps_replies=True, tenants=True,
    ),
    "sessions save": Operation(
        "Save the session's state, its weights, or the adapter or model for other programs, by a name.",
        "sessions.calls:SaveInput", "sessions.calls:save", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/save", keeps_replies=True, tenants=True,
    ),
    "sessions load": Operation(
        "Take a saved state back, or its weights alone.",
        "sessions.calls:LoadInput", "sessions.calls:load", "sessions.lines:reply_text", RUN,
        route="POST /api/v1/sessions/{session}/load", keeps_replies=True, tenants=True,
    ),
    "sessions result": Operation(
        "The reply of an operation that was not waited for.",
        "sessions.calls:ResultInput", "sessions.calls:show_result", "sessions.lines:reply_text", READ,
        route="GET /api/v1/sessions/{session}/results/{op_seq}", tenants=True,
    ),
    "sessions output": Operation(
        "Logits or hidden states that a forward has kept, as a safetensors file.",
        "sessions.calls:OutputInput", "sessions.calls:read_output", "sessions.lines:output_text", READ,
        route="GET /api/v1/sessions/{session}/outputs/{name}", tenants=True,
    ),
}  # fmt: skip
