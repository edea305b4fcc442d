"""Views of result files: tables, plots, pages. They read records and never measure."""
