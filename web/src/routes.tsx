// Every page of the dashboard: its path below /dashboard, its title, and the group of the menu that it is in.

import { lazy, type ComponentType } from "react";

export interface PageRoute {
  /** Pattern of wouter below /dashboard: `/jobs/:job`. */
  path: string;
  component: ComponentType<never>;
  /** Title in the menu; a page without one is reached from another page. */
  menu?: string;
}

export const PAGES: PageRoute[] = [
  { path: "/", component: lazy(() => import("./pages/overview")), menu: "Overview" },
  { path: "/chains", component: lazy(() => import("./pages/chains")), menu: "Chains" },
  { path: "/chains/new", component: lazy(() => import("./pages/chains/editor")) },
  { path: "/chains/templates/:template", component: lazy(() => import("./pages/chains/template")) },
  { path: "/chains/:chain/edit", component: lazy(() => import("./pages/chains/editor")) },
  { path: "/chains/:chain", component: lazy(() => import("./pages/chains/stored")) },
  { path: "/jobs", component: lazy(() => import("./pages/jobs")), menu: "Jobs" },
  { path: "/jobs/new", component: lazy(() => import("./pages/jobs/new")) },
  { path: "/jobs/compare", component: lazy(() => import("./pages/jobs/compare")) },
  { path: "/jobs/:job", component: lazy(() => import("./pages/jobs/detail")) },
  { path: "/data", component: lazy(() => import("./pages/data")), menu: "Data" },
  { path: "/data/:run/:node/:port", component: lazy(() => import("./pages/data/artifact")) },
  { path: "/evaluations", component: lazy(() => import("./pages/evaluations")), menu: "Evaluations" },
  { path: "/evaluations/:run/:node", component: lazy(() => import("./pages/evaluations/evaluation")) },
  { path: "/adapters", component: lazy(() => import("./pages/adapters")), menu: "Adapters" },
  { path: "/adapters/:tenant/:role/:version", component: lazy(() => import("./pages/adapters/version")) },
  { path: "/adapters/:tenant/:role/:version/chat", component: lazy(() => import("./pages/adapters/chat")) },
  { path: "/nights", component: lazy(() => import("./pages/nights")), menu: "Nights" },
  { path: "/nights/graph", component: lazy(() => import("./pages/nights/graph")) },
  { path: "/nights/:tenant/:night", component: lazy(() => import("./pages/nights/night")) },
  { path: "/backends", component: lazy(() => import("./pages/backends")), menu: "Backends" },
  { path: "/gpus", component: lazy(() => import("./pages/gpus")), menu: "GPUs" },
  { path: "/sweeps", component: lazy(() => import("./pages/sweeps")), menu: "Sweeps" },
  { path: "/sweeps/new", component: lazy(() => import("./pages/sweeps/new")) },
  { path: "/sweeps/:name", component: lazy(() => import("./pages/sweeps/detail")) },
  { path: "/scripts", component: lazy(() => import("./pages/scripts")), menu: "Scripts" },
  { path: "/settings", component: lazy(() => import("./pages/settings")), menu: "Settings" },
];
