"""job.yaml -> JobSpec (parse), its code -> one archive (freeze), JSON and hash (codec), the page (docs)."""
