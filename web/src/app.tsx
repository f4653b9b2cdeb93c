// Menu, content, and what holds for every page: the connection, the theme.

import { createElement, Suspense, useState, type ComponentType } from "react";
import { Link, Route, Router, Switch, useLocation } from "wouter";
import { useLogin, useLogOut } from "./api/login";
import { Boundary } from "./components/boundary";
import { ConnectionNote } from "./components/connection";
import { Loading } from "./components/notes";
import { ThemeButton } from "./components/theme";
import MissingPage from "./pages/missing";
import { PAGES } from "./routes";

export function App() {
  return (
    <Router base="/dashboard">
      <a className="skip" href="#content">
        Skip to the content
      </a>
      <Header />
      <ConnectionNote />
      <Content />
    </Router>
  );
}

function Content() {
  const [location] = useLocation();
  return (
    <Boundary address={location}>
      <Suspense fallback={<Loading />}>
        <Switch>
          {PAGES.map(({ path, component }) => (
            <Route key={path} path={path}>
              {(parameters) => createElement(component as ComponentType<object>, parameters)}
            </Route>
          ))}
          <Route>
            <MissingPage />
          </Route>
        </Switch>
      </Suspense>
    </Boundary>
  );
}

function Header() {
  const [location] = useLocation();
  const { caller } = useLogin();
  const logOut = useLogOut();
  const [openedAt, setOpenedAt] = useState<string | null>(null); // a link closes the menu
  const isOpen = openedAt === location;
  return (
    <header className="bar">
      <Link href="/" className="brand">
        <img src="/dashboard/icon.svg" alt="" width="24" height="24" /> Trainyard
      </Link>
      <button
        type="button"
        className="menu-button"
        aria-expanded={isOpen}
        aria-controls="menu"
        onClick={() => setOpenedAt(isOpen ? null : location)}
      >
        Menu
      </button>
      <nav id="menu" aria-label="Pages" className={isOpen ? "is-open" : undefined}>
        {PAGES.filter((page) => page.menu).map((page) => (
          <Link key={page.path} href={page.path} aria-current={isCurrent(page.path, location) ? "page" : undefined}>
            {page.menu}
          </Link>
        ))}
      </nav>
      <div className="actions">
        <ThemeButton />
        <button type="button" title={`Logged in as ${caller}`} onClick={() => logOut.mutate()}>
          Log out
        </button>
      </div>
    </header>
  );
}

function isCurrent(path: string, location: string): boolean {
  return path === "/" ? location === "/" : location === path || location.startsWith(`${path}/`);
}
