// A log: search, follow, pause, download. Only the visible lines are in the page, so that a long log scrolls smoothly.

import { useEffect, useLayoutEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { formatBytes } from "./format";
import "./logs.css";

export interface LogLine {
  text: string;
  /** As Python's logging has it: 30 is a warning, 40 an error. */
  level?: number;
  source?: string;
}

export interface LogViewProps {
  lines: readonly LogLine[];
  /** State of the stream: `live`, `reconnecting`, `ended` … */
  state?: string;
  /** Name of the file that a download writes. */
  fileName?: string;
  /** Loader of the lines before the first one. */
  earlier?: { bytes: number; isFull: boolean; isLoading: boolean; onLoad: () => void };
  /** What else is above the lines, such as which log is shown. */
  children?: ReactNode;
}

const LINE_PX = 18;
const AROUND = 20;
const WARNING = 30;
const ERROR = 40;
/** Colours and cursor movements of a terminal. */
const ANSI = /\x1b\[[0-9;?]*[A-Za-z]/g;

export function LogView({ lines, state = "", fileName = "log.txt", earlier, children }: LogViewProps) {
  const frame = useRef<HTMLDivElement>(null);
  const [search, setSearch] = useState("");
  const [follows, setFollows] = useState(true);
  const [pausedLines, setPausedLines] = useState<readonly LogLine[] | null>(null);
  const [top, setTop] = useState(0);
  const previousHeight = useRef(0);
  const source = pausedLines ?? lines;
  const matches = useMemo(() => {
    const needle = search.toLowerCase();
    return needle ? source.filter((line) => line.text.toLowerCase().includes(needle)) : source;
  }, [source, search]);

  // What is put before the first line leaves the lines where they are on the screen.
  const below = useRef<number | null>(null);
  useLayoutEffect(() => {
    if (below.current === null || !frame.current) return;
    frame.current.scrollTop = frame.current.scrollHeight - below.current;
    below.current = null;
  }, [earlier?.bytes]);
  const loadEarlier = () => {
    below.current = frame.current!.scrollHeight - frame.current!.scrollTop;
    setFollows(false);
    earlier!.onLoad();
  };

  useEffect(() => {
    if (follows && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [matches, follows]);

  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = frame.current!;
    setTop(scrollTop);
    // Lines that came meanwhile also leave the end out of sight: only who scrolls up stops following.
    if (scrollHeight - scrollTop - clientHeight < LINE_PX) setFollows(true);
    else if (scrollTop < previousHeight.current) setFollows(false);
    previousHeight.current = scrollTop;
  };
  const first = Math.max(0, Math.floor(top / LINE_PX) - AROUND);
  const visible = matches.slice(first, first + 2 * AROUND + 60);
  return (
    <div>
      <div className="actions">
        {children}
        <label className="visually-hidden" htmlFor="log-search">
          Search the log
        </label>
        <input
          id="log-search"
          type="search"
          placeholder="Search"
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <button type="button" aria-pressed={follows} onClick={() => setFollows(!follows)}>
          Follow
        </button>
        <button
          type="button"
          aria-pressed={pausedLines !== null}
          onClick={() => setPausedLines(pausedLines ? null : lines)}
        >
          {pausedLines ? `Show ${lines.length - pausedLines.length} new` : "Pause the log"}
        </button>
        <button type="button" onClick={() => download(fileName, lines)}>
          Download
        </button>
        <span className="quiet" role="status">
          {search ? `${matches.length} of ${source.length} lines` : `${source.length} lines`}
          {state && `, ${state}`}
        </span>
      </div>
      {earlier && (
        <p className="quiet">
          {formatBytes(earlier.bytes)} before this are not shown.{" "}
          {earlier.isFull ? (
            "This page keeps no more of the log; read it by trainyard jobs logs."
          ) : (
            <button type="button" disabled={earlier.isLoading || pausedLines !== null} onClick={loadEarlier}>
              Load earlier
            </button>
          )}
        </p>
      )}
      <div ref={frame} className="log" tabIndex={0} role="log" aria-live="off" aria-label="Log" onScroll={onScroll}>
        <div className="log-lines" style={{ height: matches.length * LINE_PX }}>
          {visible.map((line, index) => (
            <div key={first + index} className={`log-line ${classOf(line)}`} style={{ top: (first + index) * LINE_PX }}>
              {line.source && <span className="source">{line.source} </span>}
              <Marked text={line.text.replace(ANSI, "")} search={search} />
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

/** A text with what was searched for marked. */
function Marked({ text, search }: { text: string; search: string }) {
  const matchStart = search ? text.toLowerCase().indexOf(search.toLowerCase()) : -1;
  if (matchStart < 0) return text;
  return (
    <>
      {text.slice(0, matchStart)}
      <mark>{text.slice(matchStart, matchStart + search.length)}</mark>
      {text.slice(matchStart + search.length)}
    </>
  );
}

function classOf(line: LogLine): string {
  const level = line.level ?? 0;
  return level >= ERROR ? "log-error" : level >= WARNING ? "log-warning" : "";
}

function download(name: string, lines: readonly LogLine[]): void {
  const text = lines.map((line) => `${line.source ? `${line.source} ` : ""}${line.text}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
