// What a page shows when its own code fails or cannot be loaded: the reason and a way on, never nothing.

import { Component, type ReactNode } from "react";
import { Page } from "./page";
import { ProblemNote } from "./notes";

const KEY = "trainyard.reloaded";
const AGAIN_MS = 30_000;

/**
 * After an update of the service a part of a page that is open may be gone, or need what the loaded parts do not have: load
 * the page again, once. While the service is away there is nothing to load, and the page says so.
 */
export function reloadAfterUpdate(): void {
  window.addEventListener("vite:preloadError", () => {
    if (Date.now() - Number(sessionStorage.getItem(KEY) ?? 0) < AGAIN_MS) return;
    void fetch("/health").then((answer) => {
      if (!answer.ok) return;
      sessionStorage.setItem(KEY, String(Date.now()));
      window.location.reload();
    }, ignore);
  });
}

/** The boundary shows the error already. */
const ignore = () => undefined;

interface BoundaryProps {
  /** Where the reader is: another page begins without the error of this one. */
  address: string;
  children: ReactNode;
}

export class Boundary extends Component<BoundaryProps, { error: unknown }> {
  override state = { error: null as unknown };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override componentDidUpdate(previous: BoundaryProps) {
    if (previous.address !== this.props.address && this.state.error !== null) this.setState({ error: null });
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <Page title="This page cannot be shown">
        <ProblemNote error={this.state.error} onRetry={() => window.location.reload()} />
      </Page>
    );
  }
}
