"""Operations of administrators: topics, groups, reassignments, users. Pure."""
