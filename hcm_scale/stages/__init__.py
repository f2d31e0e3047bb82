"""One function per stage: joins the folders below, without configuration."""
