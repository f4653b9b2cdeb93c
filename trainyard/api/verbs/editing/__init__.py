"""What an editor of chains asks: the palette, a draft written out, and where a link may lead."""
