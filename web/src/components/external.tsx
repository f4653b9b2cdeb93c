// A link to another server, such as the Prefect UI: only to an address of http or https, whatever an answer says.

import type { ReactNode } from "react";

export function ExternalLink({ url, children }: { url: string; children: ReactNode }) {
  if (!/^https?:\/\//i.test(url)) return <>{children}</>;
  return (
    <a href={url} rel="noreferrer">
      {children}
    </a>
  );
}
