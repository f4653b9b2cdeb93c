// Server-sent events of the API. The browser reconnects by itself and sends the last id, so that nothing is missed.

import { useEffect, useRef, useState } from "react";
import { API } from "./client";

/** `live` while events come, `reconnecting` after the connection broke, `ended` after the stream's `end`. */
export type StreamState = "connecting" | "live" | "reconnecting" | "ended";

type Handlers = Record<string, (data: any, id: string) => void>;

const RETRY_MS = 2000;

/**
 * Follow a stream while the component is mounted. `handlers` maps an event's name to what is done with its JSON and id.
 * `path` is below /api/v1; an empty one follows nothing. `continued` is asked at each new connection for the address that
 * continues what was received; without it a new connection begins where `path` does.
 */
export function useEventStream(path: string, handlers: Handlers, continued?: () => string): StreamState {
  const [state, setState] = useState<StreamState>("connecting");
  const latest = useRef(handlers);
  latest.current = handlers;
  const place = useRef(continued);
  place.current = continued;
  const names = Object.keys(handlers).join(" ");
  useEffect(() => {
    if (!path) return;
    let source: EventSource | null = null;
    let retry: number | undefined;
    const connect = () => {
      source = new EventSource(`${API}${place.current?.() ?? path}`);
      source.onopen = () => setState("live");
      source.onerror = () => {
        setState("reconnecting");
        // A browser gives up after an answer that is not a stream, such as the 502 of a proxy during a restart.
        if (source?.readyState === EventSource.CLOSED) retry = window.setTimeout(connect, RETRY_MS);
      };
      for (const name of names.split(" ").filter((one) => one && one !== "end")) {
        source.addEventListener(name, (event) => latest.current[name]?.(JSON.parse(event.data), event.lastEventId));
      }
      source.addEventListener("end", (event) => {
        source?.close();
        setState("ended");
        latest.current["end"]?.(JSON.parse(event.data), event.lastEventId);
      });
    };
    setState("connecting");
    connect();
    return () => {
      window.clearTimeout(retry);
      source?.close();
    };
  }, [path, names]);
  return state;
}
