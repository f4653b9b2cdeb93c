"""Operations of step sessions."""
