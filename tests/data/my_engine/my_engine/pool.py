class RowPool:
    def __init__(self):
        self.free_rows = [3, 2, 1]

    def alloc(self, reqs):
        rows = [self.free_rows.pop() for _ in reqs]
        for req, row in zip(reqs, rows, strict=True):
            req.row = row
        return rows

    def free(self, req):
        self.free_rows.append(req.row)
        req.row = None
