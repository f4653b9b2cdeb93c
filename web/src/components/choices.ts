// Suggestions of text fields in forms: the base models of this machine, and files and folders inside the data roots.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { client, dataOf } from "../api/client";
import { formatBytes } from "./format";
import type { Choices } from "./inputs";

const ASK_AFTER_MS = 200;

/** The base models whose files are here. */
const useModels = () =>
  useQuery({
    queryKey: ["models"],
    queryFn: () => dataOf(client.GET("/api/v1/models")),
    staleTime: 60_000,
    retry: false,
  });

/** Entries of the folder that a text names so far: `handbook/ba` is in `handbook`. */
function useFolder(text: string) {
  const [folder, setFolder] = useState("");
  const folderText = text.slice(0, Math.max(0, text.lastIndexOf("/")));
  useEffect(() => {
    const handle = window.setTimeout(() => setFolder(folderText), ASK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [folderText]);
  return useQuery({
    queryKey: ["data", "folder", folder],
    queryFn: () => dataOf(client.GET("/api/v1/data", { params: { query: folder ? { folder } : {} } })),
    placeholderData: keepPreviousData,
    staleTime: 5_000,
    retry: false, // a folder that is not there yet, while somebody writes its name
  });
}

/**
 * The choices of a form. `paths` are its fields of data sets with what is written in them, `models` those of base models;
 * `start` is the folder in which relative paths start.
 */
export function useChoices(paths: Readonly<Record<string, unknown>>, models: readonly string[]) {
  const modelList = useModels();
  const example = Object.values(paths).find((path) => typeof path === "string" && path.includes("/"));
  const folder = useFolder(typeof example === "string" ? example : "");
  const entries = folder.data?.entries.map((entry) => ({
    value: entry.path,
    label: entry.kind === "folder" ? "folder" : formatBytes(entry.bytes),
  }));
  const names = modelList.data?.models.map((model) => ({
    value: model.name,
    label: [model.place, formatBytes(model.bytes)].filter(Boolean).join(", "),
  }));
  const choices: Choices = {
    ...Object.fromEntries(Object.keys(paths).map((path) => [path, entries])),
    ...Object.fromEntries(models.map((path) => [path, names])),
  };
  return { choices, start: folder.data?.start ?? "" };
}
