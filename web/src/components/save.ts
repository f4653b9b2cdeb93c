// Save a text as a file of the browser's downloads.

export function saveFile(name: string, text: string, type: string): void {
  const link = document.createElement("a");
  const url = URL.createObjectURL(new Blob([text], { type }));
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
