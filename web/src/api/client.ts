// Requests to the REST API, typed by its OpenAPI document (`schema.d.ts`). A refusal becomes a `Problem`.

import createClient from "openapi-fetch";
import type { paths, UploadedFile } from "./schema";

export const API = "/api/v1";

/** One reason of a refusal: the node and the path of the field it is about. */
export interface ProblemReason {
  field: string;
  because: string;
  code: string;
  node: string | null;
  instead: string;
  row: string;
}

/** A problem document (RFC 9457) of the service, or the lack of any answer (`status` 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly summary: string,
    readonly why = "",
    readonly remedy = "",
    readonly errors: ProblemReason[] = [],
    readonly trace = "",
  ) {
    super([summary, why].filter(Boolean).join(" "));
    this.name = "Problem";
  }

  /** Whether the service, or the Prefect server behind it, could not be reached: the same request may succeed later. */
  get isOutage(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }

  /** Whether the service has too many requests of this caller open. */
  get isBusy(): boolean {
    return this.status === 429;
  }
}

/** What a login allows; `csrf` goes with every request that changes something. */
export interface Login {
  caller: string;
  scope: "read" | "run" | "admin";
  tenant: string;
  csrf: string;
}

let csrf = "";

export function setCsrf(token: string): void {
  csrf = token;
}

/** `fetch` with the CSRF header, whose failures and refusals are thrown as `Problem`. */
export async function fetchOrThrow(input: Request): Promise<Response> {
  if (csrf && !["GET", "HEAD"].includes(input.method)) input.headers.set("x-csrf-token", csrf);
  let answer: Response;
  try {
    answer = await fetch(input);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "", "The service does not answer.", "", "Start it with trainyard up.");
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const problem = await answer.json();
    return new Problem(
      answer.status,
      problem.code,
      problem.detail,
      problem.why,
      problem.do,
      problem.errors,
      problem.trace,
    );
  } catch {
    return new Problem(answer.status, "", `The service answered ${answer.status} ${answer.statusText}.`);
  }
}

/** The client: `await client.GET("/api/v1/jobs", { params: { query: { limit: 50 } } })` gives `{ data }`, or throws. */
export const client = createClient<paths>({ baseUrl: globalThis.location?.origin, fetch: fetchOrThrow });

type Answered<T> = { data?: T; error?: unknown };

/** The body of an answer that has one; the text of a route that is also a stream is for `useEventStream`. */
export async function dataOf<T>(answer: Promise<Answered<T>>): Promise<Exclude<T, string>> {
  const { data } = await answer;
  return data as Exclude<T, string>;
}

/** Send a local file, and say how much of it has arrived. Refusals and failures are thrown as `Problem`. */
export function uploadFile(
  file: File,
  options: { name?: string; folder?: string; signal?: AbortSignal; onProgress?: (bytes: number) => void },
): Promise<UploadedFile> {
  const { name = file.name, folder = "", signal, onProgress } = options;
  const query = folder ? `?folder=${encodeURIComponent(folder)}` : "";
  // fetch() says nothing of how much of a body was sent.
  const request = new XMLHttpRequest();
  request.open("PUT", `${API}/data/uploads/${encodeURIComponent(name)}${query}`);
  request.setRequestHeader("content-type", "application/octet-stream");
  if (csrf) request.setRequestHeader("x-csrf-token", csrf);
  request.upload.onprogress = (event) => onProgress?.(event.loaded);
  signal?.addEventListener("abort", () => request.abort());
  return new Promise((resolve, reject) => {
    request.onabort = () => reject(new DOMException("The upload was cancelled.", "AbortError"));
    request.onerror = () => reject(new Problem(0, "", "The upload was cut off.", "", "Try it again."));
    request.onload = () => {
      const answer = new Response(request.responseText, { status: request.status, statusText: request.statusText });
      if (answer.ok) answer.json().then(resolve, reject);
      else problemOf(answer).then(reject, reject);
    };
    request.send(file);
  });
}
