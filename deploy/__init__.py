"""Files and programs that deploy the sidecar on this machine (``local``) and elsewhere."""
