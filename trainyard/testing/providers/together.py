"""A double of Together AI: its files, jobs, events, metrics and downloads (routes of `together` 2.36)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import COST_USD, TOKENS, Call, JobDouble, ProviderDouble, Refusal, Reply

LIMITS = {
    "default_gradient_accumulation_steps": 1, "max_learning_rate": 0.1, "max_num_checkpoints": 10,
    "max_num_epochs": 20, "max_num_evals": 100, "merge_output_lora": False, "min_learning_rate": 0.0,
    "supports_full_training": True, "supports_reasoning": False, "supports_tools": True, "supports_vision": False,
    "max_seq_length": 32_768, "max_seq_length_sft": 32_768, "max_seq_length_dpo": 16_384,
    "model_name": "double", "context_length": 32_768,
    "lora_training": {
        "max_batch_size": 96, "max_batch_size_dpo": 48, "min_batch_size": 1, "max_rank": 64, "default_rank": 8,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    },
    "full_training": {"max_batch_size": 96, "max_batch_size_dpo": 48, "min_batch_size": 1},
}  # fmt: skip
CREATED = datetime(2026, 11, 28, tzinfo=UTC).isoformat()
SUFFIX_LENGTH = 40
DISPOSITION = re.compile(rb'name="([^"]+)"')


class TogetherDouble(ProviderDouble):
    """Together AI on a free port; `url` is the address without `/v1`."""

    routes = (
        ("POST", r"/v1/files", "begin_upload"),
        ("PUT", r"/store/([\w-]+)", "take_file"),
        ("POST", r"/v1/files/([\w-]+)/preprocess", "describe_file"),
        ("GET", r"/v1/fine-tunes/models/limits", "show_limits"),
        ("POST", r"/v1/fine-tunes/estimate-price", "estimate"),
        ("POST", r"/v1/fine-tunes", "create_job"),
        ("GET", r"/v1/fine-tunes", "list_all"),
        ("GET", r"/v1/fine-tunes/([\w-]+)", "show"),
        ("GET", r"/v1/fine-tunes/([\w-]+)/events", "list_events"),
        ("GET", r"/v1/fine-tunes/([\w-]+)/metrics", "list_metrics"),
        ("POST", r"/v1/fine-tunes/([\w-]+)/cancel", "cancel"),
        ("GET", r"/v1/finetune/download", "download"),
    )
    walk = ("pending", "queued", "running", "compressing", "uploading", "completed")
    failed = "error"

    def check_key(self, call: Call) -> None:
        if not call.path.startswith("/store/"):  # a signed address
            super().check_key(call)

    def begin_upload(self, call: Call) -> Reply:
        file_id = f"file-{len(self.files):04d}"
        self.files[file_id] = b""
        return Reply(302, "", {"Location": f"{self.url}/store/{file_id}", "X-Together-File-Id": file_id})

    def take_file(self, call: Call, file_id: str) -> Reply:
        self.check_rows(call.content)
        self.files[file_id] = call.content
        return Reply(200, "")

    def describe_file(self, call: Call, file_id: str) -> Reply:
        return Reply(200, {
            "id": file_id, "bytes": len(self.files[file_id]), "created_at": 1, "filename": f"{file_id}.jsonl",
            "FileType": "jsonl", "object": "file", "Processed": True, "purpose": "fine-tune",
        })  # fmt: skip

    def show_limits(self, call: Call) -> Reply:
        self.require_model(call.query.get("model_name", ""))
        return Reply(200, LIMITS)

    def estimate(self, call: Call) -> Reply:
        return Reply(200, {"allowed_to_proceed": True, "estimated_total_price": COST_USD, "user_limit": 100.0,
                           "estimated_train_token_count": TOKENS, "estimated_eval_token_count": 0})  # fmt: skip

    def create_job(self, call: Call) -> Reply:
        body = validate_body(call.json)
        self.require_model(body["model"])
        if body["training_file"] not in self.files:
            raise Refusal(400, f"There is no file {body['training_file']}.")
        if len(body.get("suffix") or "") > SUFFIX_LENGTH:
            raise Refusal(400, f"The suffix is longer than {SUFFIX_LENGTH} characters.")
        job = self.add_job(f"ft-{len(self.jobs):04d}-double", body)
        return Reply(200, describe(job))

    def list_all(self, call: Call) -> Reply:
        return Reply(200, {"data": [describe(job) for job in self.list_visible()]})

    def show(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.read_job(job_id)))

    def list_events(self, call: Call, job_id: str) -> Reply:
        count = self.jobs[job_id].events
        return Reply(200, {"data": [
            {"object": "fine-tune-event", "created_at": CREATED, "message": f"event {number}", "type": "job_pending"}
            for number in range(count)
        ]})  # fmt: skip

    def list_metrics(self, call: Call, job_id: str) -> Reply:
        job = self.jobs[job_id]
        steps = 0 if job.word in self.walk[:2] else 3
        return Reply(200, {"metrics": [
            {"global_step": float(step), "train/loss": 2.0 / step, "train/learning_rate": 1e-5}
            for step in range(1, steps + 1)
        ]})  # fmt: skip

    def cancel(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.cancel_job(job_id)))

    def download(self, call: Call) -> Reply:
        job = self.jobs.get(call.query.get("ft_id", ""))
        if job is None or job.word != self.walk[-1]:
            raise Refusal(400, "The job is not completed.")
        return Reply(200, self.pack_weights(), {"Content-Type": "application/octet-stream"})


def validate_body(body: JsonObject) -> JsonObject:
    """Return the body of a job, valid by the client's own model of it. Raises `Refusal` (400)."""
    from pydantic import ValidationError
    from together.lib.types.fine_tuning import FinetuneRequest  # an optional package

    unknown = body.keys() - FinetuneRequest.model_fields.keys()
    try:
        FinetuneRequest.model_validate(body)
    except ValidationError as error:
        raise Refusal(400, str(error)) from error
    if unknown:
        raise Refusal(400, f"There is no field {', '.join(sorted(unknown))}.")
    return body


def describe(job: JobDouble) -> JsonObject:
    """Return a job as Together shows it."""
    done = job.word in ("completed", "error")
    values: dict[str, Any] = {
        "id": job.id, "status": job.word, "user_id": "user-double", "created_at": CREATED, "updated_at": CREATED,
        "suffix": job.body.get("suffix"), "model": job.body["model"], "training_file": job.body["training_file"],
    }  # fmt: skip
    if done:
        values |= {"model_output_name": f"double/{job.body['model']}-{job.body.get('suffix')}",
                   "total_price": int(COST_USD * 1e9), "token_count": TOKENS}  # fmt: skip
    return values
