// Light or dark: as the system has it, until the reader chooses.

import { useState } from "react";

const KEY = "trainyard.theme";

/** Apply the stored choice before the first paint. */
export function applyTheme(): void {
  const savedTheme = localStorage.getItem(KEY);
  if (savedTheme === "light" || savedTheme === "dark") document.documentElement.dataset.theme = savedTheme;
}

export function ThemeButton() {
  const dark = () =>
    document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const [isDark, setIsDark] = useState(dark);
  const toggle = () => {
    const next = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(KEY, next);
    setIsDark(!isDark);
  };
  return (
    <button type="button" onClick={toggle} aria-label={isDark ? "Light theme" : "Dark theme"}>
      {isDark ? "☀" : "☾"}
    </button>
  );
}
