"""Plug-ins of hcm-scale. Nothing runs at import; hcm-scale imports a module when its plug-in is used."""
