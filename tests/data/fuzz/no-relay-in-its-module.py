class Planner:
    def plan(self, batch):
        return self.new_seq_lens_buf[batch.rows], batch.output_tokens_buf[batch.rows]
