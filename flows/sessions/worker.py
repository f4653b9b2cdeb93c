"""The flow behind `session/worker`: one step session, open until it is closed or no longer called.

It keeps a device as a trainer does, and supervises the process that answers the calls. Those go to that process
directly: Prefect decides when a session begins, and sees how it ends.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.endings import interruptible, schedule_again, server_state
from trainyard.app.live.waits import describe_wait
from trainyard.backends.results import TrainingStopped, enter_unless_stopped
from trainyard.backends.sessions.records import (
    SessionState,
    folder_of_session,
    read_record,
    write_status,
)
from trainyard.backends.sessions.running import build_error, ending, run_session
from trainyard.compute.child import RUN_VARIABLE
from trainyard.compute.events import Event
from trainyard.compute.lease import Wait, job_lock
from trainyard.compute.supervise import DesiredState, Outcome, Status
from trainyard.errors import TrainyardError
from trainyard.inherited import keep_files_private
from trainyard.prefect_api.slots import device_slots
from trainyard.prefect_api.states import make_state_reader
from trainyard.settings import settings
from trainyard.stores.model_hub import download_model
from trainyard.stores.models import resolve_model


@flow(name="session", persist_result=True, validate_parameters=True, log_prints=False)
async def session(session_id: str) -> State[Any]:
    """Open a step session that was created by `trainyard sessions create`, and end with it.

    Args:
        session_id: Its id.
    """
    keep_files_private()
    run_id, logger = str(flow_run.id), get_run_logger()
    os.environ[RUN_VARIABLE] = run_id

    def note(event: Event) -> None:
        if event["event"] in ("warning", "restart"):
            logger.warning("%s", event.get("text") or event)

    with interruptible():
        try:
            outcome = await asyncio.to_thread(run_on_device, session_id, run_id, note)
        except TrainingStopped as stopped:
            return await stop(run_id, stopped.reason, stopped.what)
        except TrainyardError as error:
            return Failed(message=str(error))
        if outcome.status is Status.FAILED:
            return Failed(message=str(build_error(outcome)))
        _, why = ending(outcome)
        if outcome.status is Status.STOPPED and why in set(DesiredState):
            return await stop(run_id, why, "The session has saved and ended.")
        return Completed(message=f"The session has saved and ended: {why}.", data={"session": session_id})


def run_on_device(session_id: str, run_id: str, note: Any) -> Outcome:
    """Wait for the device, then run the session's process to its end; on one thread, which outlives that process.

    Raises `TrainingStopped` for a run that is stopped while it waits.
    """
    run_settings, desired_state = settings(), make_state_reader(run_id)
    record, folder = read_record(run_settings, session_id), folder_of_session(run_settings, session_id)
    lock = job_lock(run_settings, folder, run=run_id, give_up=lambda: desired_state() is not DesiredState.RUN)
    with enter_unless_stopped(lock, desired_state, "The run was stopped while another one has the session."):
        write_status(folder, SessionState.PENDING, "waiting for the device", run_id)

        def note_wait(wait: Wait) -> None:
            write_status(folder, SessionState.PENDING, describe_wait(wait, run_settings, record.tenant).text, run_id)

        try:
            count = record.config.launch.processes
            with device_slots(run_settings, count, run=run_id, read_state=desired_state, on_wait=note_wait) as devices:
                base = record.config.base_model or run_settings.default_base_model
                if resolve_model(base, run_settings).path is None:
                    write_status(folder, SessionState.PENDING, f"downloading {base}", run_id)
                    download_model(base, run_settings)
                return run_session(
                    record, run_settings, devices=devices, run=run_id, desired_state=desired_state, on_event=note
                )
        except TrainingStopped as stopped:
            write_status(folder, SessionState.ENDED, stopped.reason, run_id)
            raise
        except TrainyardError as error:
            write_status(folder, SessionState.FAILED, f"{error.code}: {error.what}", run_id)
            raise


async def stop(run_id: str, reason: str, message: str) -> State[Any]:
    """Return the state of a run that was cancelled; one that was paused or preempted leaves its state to who did it.

    Raises Prefect's `Pause`.
    """
    if reason == DesiredState.PREEMPT:
        raise Pause(state=await schedule_again(run_id, message))
    state = await server_state(run_id)
    if reason == DesiredState.PAUSE and state is not None and state.type is StateType.PAUSED:
        raise Pause(state=state)
    return Cancelled(message=message)
