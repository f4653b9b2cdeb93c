// A text of the service: what it puts between backticks is code, as in the manual.

/** `` Run `trainyard up`. `` with the command in the type of code; nothing of the text is markup. */
export function Prose({ text }: { text: string | null | undefined }) {
  const parts = (text ?? "").split("`");
  // An odd number of backticks: the last one is a character of the text.
  if (parts.length % 2 === 0) parts.push(`${parts.splice(-2, 1)[0]}\`${parts.pop()}`);
  return parts.map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}
