// Every page of the dashboard: its path below /dashboard, its title, and the group of the menu that it is in.

import { lazy, type ComponentType } from "react";

export interface PageRoute {
  /** Pattern of wouter below /dashboard: `/jobs/:job`. */
  path: string;
  component: ComponentType<any>;
  /** Title in the menu; a page without one is reached from another page. */
  menu?: string;
}

export const PAGES: PageRoute[] = [
  { path: "/", component: lazy(() => import("./pages/overview")), menu: "Overview" },
  { path: "/chains", component: lazy(() => import("./pages/chains")), menu: "Chains" },
  { path: "/chains/new", component: lazy(() => import("./pages/chains/editor")) },
  { path: "/chains/:chain/edit", component: lazy(() => import("./pages/chains/editor")) },
  { path: "/chains/:chain", component: lazy(() => import("./pages/chains/stored")) },
  { path: "/jobs", component: lazy(() => import("./pages/jobs")), menu: "Jobs" },
  { path: "/jobs/new", component: lazy(() => import("./pages/jobs/new")) },
  { path: "/jobs/compare", component: lazy(() => import("./pages/jobs/compare")) },
  { path: "/jobs/:job", component: lazy(() => import("./pages/jobs/detail")) },
];
