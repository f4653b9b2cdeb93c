// Server-sent events of the API. The browser reconnects by itself and sends the last id, so that nothing is missed.

import { useEffect, useEffectEvent, useState } from "react";
import { API, fetchOrThrow } from "./client";

/** `live` while events come, `reconnecting` after the connection broke, `ended` after the stream's `end`. */
export type StreamState = "connecting" | "live" | "reconnecting" | "ended";

type Handlers = Record<string, (data: never, id: string) => void>;

const RETRY_MS = 2000;

/**
 * Follow a stream while the component is mounted. `handlers` maps an event's name to what is done with its JSON and id.
 * `path` is below /api/v1; an empty one follows nothing. `continued` is asked at each new connection for the address that
 * continues what was received; without it a new connection begins where `path` does.
 */
export function useEventStream(path: string, handlers: Handlers, continued?: () => string): StreamState {
  const [connection, setConnection] = useState<{ path: string; state: StreamState }>({ path, state: "connecting" });
  const handle = useEffectEvent((name: string, event: MessageEvent<string>) =>
    handlers[name]?.(JSON.parse(event.data) as never, event.lastEventId),
  );
  const address = useEffectEvent(() => continued?.() ?? path);
  const names = Object.keys(handlers).join(" ");
  useEffect(() => {
    if (!path) return;
    let source: EventSource | null = null;
    let retry: number | undefined;
    const setState = (state: StreamState) => setConnection({ path, state });
    const connect = () => {
      source = new EventSource(`${API}${address()}`);
      source.onopen = () => setState("live");
      source.onerror = () => {
        setState("reconnecting");
        // A browser gives up after an answer that is not a stream, such as the 502 of a proxy during a restart.
        if (source?.readyState === EventSource.CLOSED) retry = window.setTimeout(connect, RETRY_MS);
      };
      for (const name of names.split(" ").filter((event) => event && event !== "end")) {
        source.addEventListener(name, (event) => handle(name, event));
      }
      source.addEventListener("end", (event) => {
        source?.close();
        setState("ended");
        handle("end", event);
      });
    };
    connect();
    return () => {
      window.clearTimeout(retry);
      source?.close();
    };
  }, [path, names]);
  return connection.path === path ? connection.state : "connecting";
}

/**
 * Send a body and follow the events of the answer until it ends: an EventSource can only read. A refusal is thrown as a
 * `Problem`; `signal` closes the connection, and with it the server's work.
 */
export async function postForEvents(path: string, body: unknown, handlers: Handlers, signal: AbortSignal) {
  const headers = { accept: "text/event-stream", "content-type": "application/json" };
  const request = new Request(`${API}${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = (await fetchOrThrow(request)).body!.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (pending + value).split("\n\n");
    pending = events.pop()!;
    for (const event of events) {
      const fields = event.split("\n").map((line) => line.split(/: (.*)/s, 2));
      const name = fields.find(([field]) => field === "event")?.[1] ?? "message";
      const data = fields.filter(([field]) => field === "data").map(([, text]) => text ?? "");
      if (data.length > 0) handlers[name]?.(JSON.parse(data.join("\n")) as never, "");
    }
  }
}
